-- forget(lane) -> 1
--
-- Removes all a lane has, when its subscription is deleted. What a worker still holds of it settles into nothing.
--   KEYS[1]  the lane. Owns every key of the lane (common.lua).
local key = PREFIX .. KEYS[1]
redis.call('DEL', key .. ':s', key .. ':d', key .. ':b', key .. ':z', key .. ':m')
redis.call('ZREM', PREFIX .. 'wake', KEYS[1])
redis.call('SREM', PREFIX .. 'page', KEYS[1])
return 1
