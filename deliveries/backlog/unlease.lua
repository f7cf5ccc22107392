-- unlease(lane; generation, id, times leased, end, ...) -> 1
--
-- Takes back leases of messages that were not handed out after all, or that their puller never looked at: a lease that
-- doesn't hold any more, or ends at another time by now, is left alone. The messages are due at once, before the backlog,
-- and it costs them no attempt.
--   KEYS[1]  the lane   ARGV[1]  the generation in which they were leased; leases of another one have ended
--   ARGV[2..]  delivery, how often it had been leased when it was handed out, and when that lease was to end (ms)
-- Owns every key of the lane (common.lua).
local key = KEYS[1]
local state = load_state(key)
if not state or not is_of_generation(key, ARGV[1]) then return 1 end
local taken_back = {}
for i = 2, #ARGV, 3 do
  local id = ARGV[i]
  local ends = redis.call('ZSCORE', key .. ':l', id)
  if ends == ARGV[i + 2] and redis.call('HGET', key .. ':a', id) == ARGV[i + 1] then
    redis.call('ZREM', key .. ':l', id)
    redis.call('HINCRBY', key .. ':e', id, 1)
    redis.call('ZADD', key .. ':z', 0, id)
    redis.call('HSET', key .. ':d', id, RETRYING)
    taken_back[#taken_back + 1] = id
  end
end
if state.ordered == 1 then
  for _, id in ipairs(taken_back) do hold_back(key, state, id) end
  save_state(key, state)
end
-- Without a change nobody has to look, and a bell that nobody hears would stay.
if #taken_back > 0 then wake_lane(lane_of(key), state, now_ms()) end
return 1
