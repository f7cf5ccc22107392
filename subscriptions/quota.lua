-- quota(bucket, ...; forced, [rate, capacity, cost], ...) -> 0, or which bucket has too few tokens
--
-- Takes tokens from several buckets, from all or from none.
--   KEYS      the buckets, hashes: b = tokens, bt = as of when (ms)
--   ARGV[1]   "1" takes them although a bucket has too few, which others then have to wait for
--   ARGV[2..] for each bucket: tokens it gains a second, tokens it holds at most, tokens to take
-- A request that costs more than a bucket holds needs a full one, and leaves it in debt. Owns ph:quota:*.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = {}
for i, key in ipairs(KEYS) do
  local rate, capacity, cost = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local bucket = redis.call('HMGET', key, 'b', 'bt')
  local tokens, at = tonumber(bucket[1] or capacity), tonumber(bucket[2] or now)
  -- A bucket from the future says that the clock was set back, perhaps by hours, for which it would gain nothing.
  tokens = at > now and capacity or math.min(tokens + (now - at) * rate / 1000, capacity)
  if ARGV[1] ~= '1' and tokens < math.min(cost, capacity) then return i end
  left[i] = tokens - cost
end
for i, key in ipairs(KEYS) do
  local rate, capacity = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  redis.call('HSET', key, 'b', tostring(left[i]), 'bt', now)
  redis.call('PEXPIRE', key, math.ceil((capacity - left[i]) / rate * 1000) + 1000)
end
return 0
