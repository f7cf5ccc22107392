-- forget(lane) -> 1
--
-- Removes all keys of a lane whose subscription is deleted. Settling a message that a worker still holds has no effect.
--   KEYS[1]  the lane. Owns every key of the lane (common.lua).
local key = KEYS[1]
local bytes = redis.call('HGET', key .. ':s', STATE_CODES.held_bytes)
if bytes then redis.call('DECRBY', PREFIX .. 'bytes', bytes) end
for _, ordering in ipairs(redis.call('HKEYS', key .. ':k')) do redis.call('DEL', key .. ':q:' .. ordering) end
for _, ordering in ipairs(redis.call('HKEYS', key .. ':v')) do redis.call('DEL', key .. ':u:' .. ordering) end
for name in string.gmatch('sdbzlaemokvtwyx', '.') do redis.call('DEL', key .. ':' .. name) end
redis.call('ZREM', PREFIX .. 'wake', lane_of(key))
redis.call('SREM', PREFIX .. 'page', lane_of(key))
return 1
