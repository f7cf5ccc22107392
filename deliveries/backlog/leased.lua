-- leased(lane; id, times leased, ...) -> ids whose leases have ended
--
-- For subscriptions that must know this before they acknowledge.
--   KEYS[1]  the lane   ARGV  delivery, and how often it had been leased when it was handed out. Changes nothing.
local key = PREFIX .. KEYS[1]
local now = now_ms()
local lost = {}
for i = 1, #ARGV, 2 do
  local ends = tonumber(redis.call('ZSCORE', key .. ':l', ARGV[i]) or 0)
  if ends <= now or redis.call('HGET', key .. ':a', ARGV[i]) ~= ARGV[i + 1] then lost[#lost + 1] = ARGV[i] end
end
return lost
