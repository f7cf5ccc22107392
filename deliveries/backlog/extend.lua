-- extend(lane; duration, minimum, maximum, dice, generation, id, times leased, ...) -> ids whose leases have ended
--
-- Moves the end of leases, or ends them as nacks.
--   KEYS[1]  the lane
--   ARGV[1]  how long they last from now on, in ms; 0 is a nack
--   ARGV[2..3]  the bounds of the subscription's retry policy in ms; 0 and 0: nacked messages are due at once
--   ARGV[4]  a number in [0, 1) for the jitter of the countdown
--   ARGV[5]  the generation in which they were leased; leases of another one have ended
--   ARGV[6..]  delivery, and how often it had been leased when it was handed out
-- Owns every key of the lane (common.lua).
local key = KEYS[1]
local lane = lane_of(key)
local now = now_ms()
local duration, lost, nacked = tonumber(ARGV[1]), {}, {}
local is_current = is_of_generation(key, ARGV[5])
for i = 6, #ARGV, 2 do
  local id = ARGV[i]
  local ends = tonumber(redis.call('ZSCORE', key .. ':l', id) or 0)
  if not is_current or ends <= now or redis.call('HGET', key .. ':a', id) ~= ARGV[i + 1] then
    lost[#lost + 1] = id
  else
    redis.call('ZADD', key .. ':l', duration > 0 and now + duration or 0, id)
    if duration == 0 then nacked[#nacked + 1] = id end
  end
end
if #nacked > 0 then
  local state = load_state(key)
  while redis.call('ZCOUNT', key .. ':l', '-inf', 0) > 0 do
    lapse(key, state, now, tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
  end
  save_state(key, state)
  wake_lane(lane, state, now)
end
return lost
