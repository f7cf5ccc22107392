-- leased(lane; generation, id, times leased, ...) -> ids whose leases have ended
--
-- For subscriptions that must know this before they acknowledge.
--   KEYS[1]  the lane   ARGV[1]  the generation in which they were leased; leases of another one have ended
--   ARGV[2..]  delivery, and how often it had been leased when it was handed out. Changes nothing.
local key = KEYS[1]
local now = now_ms()
local lost = {}
local is_current = is_of_generation(key, ARGV[1])
for i = 2, #ARGV, 2 do
  local ends = tonumber(redis.call('ZSCORE', key .. ':l', ARGV[i]) or 0)
  local is_newest = redis.call('HGET', key .. ':a', ARGV[i]) == ARGV[i + 1]
  if not is_current or ends <= now or not is_newest then lost[#lost + 1] = ARGV[i] end
end
return lost
