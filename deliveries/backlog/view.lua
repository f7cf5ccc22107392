-- view(lane; most retries) -> {the time (ms), fields and values of its state, deliveries that only wait for a token, those that are
--   retried, the first of them and when each is due, leases that hold}
--
-- For people: what the console shows of a lane. Changes nothing.
--   KEYS[1]  the lane
local key = KEYS[1]
return {
  now_ms(),
  redis.call('HGETALL', key .. ':s'),
  redis.call('LLEN', key .. ':b'),
  redis.call('ZCARD', key .. ':z'),
  redis.call('ZRANGE', key .. ':z', 0, tonumber(ARGV[1]) - 1, 'WITHSCORES'),
  redis.call('ZCOUNT', key .. ':l', now_ms(), '+inf'),
}
