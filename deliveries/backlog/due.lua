-- due(lane) -> 1 if a puller that asks now may get something, or the lane is unknown or not pulled any more; else 0
--
-- For pullers that sleep: a lost ring, a retry and a lease that lapses are found so. Changes nothing.
--   KEYS[1]  the lane
local key = KEYS[1]
local now = now_ms()
local codes = STATE_CODES
local fields = redis.call('HMGET', key .. ':s', codes.mode, codes.spilled, codes.paging_until_ms)
if tonumber(fields[1]) ~= PULL then return 1 end
local has_more = tonumber(fields[2]) == 1 or redis.call('EXISTS', key .. ':y') == 1
if has_more and tonumber(fields[3] or 0) <= now then return 1 end
if redis.call('EXISTS', key .. ':b') == 1 then return 1 end
for _, name in ipairs({':z', ':l'}) do
  local first = redis.call('ZRANGE', key .. name, 0, 0, 'WITHSCORES')
  if first[1] and tonumber(first[2]) <= now then return 1 end
end
return 0
