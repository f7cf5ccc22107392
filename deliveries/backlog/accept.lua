-- accept(lane; generation, id, times leased, ...) -> ids of the deliveries whose leases have ended
--
-- Notes the acks of leases that hold, for subscriptions that refuse all others, before the database takes them. A client that
-- gets no answer asks again, and its lease may have ended by its first request. Leasing the delivery anew ends that, too; so the
-- lease goes on while the database takes the ack.
--   KEYS[1]  the lane   ARGV[1]  the generation in which they were leased; leases of another one have ended
--   ARGV[2..]  delivery, and how often it had been leased when it was handed out. Owns P:x; lengthens leases in P:l.
--- How long an ack is known, how many of a lane are, and how long the lease lasts at least.
local ACCEPTED_MS, MOST_ACCEPTED, STORED_MS = 60000, 10000, 15000
local key = KEYS[1]
local now = now_ms()
local ended, accepted, ends_of = {}, {}, {}
local is_current = is_of_generation(key, ARGV[1])
for i = 2, #ARGV, 2 do
  local name = ARGV[i] .. ' ' .. ARGV[i + 1]
  local ends = tonumber(redis.call('ZSCORE', key .. ':l', ARGV[i]) or 0)
  if is_current and ends > now and redis.call('HGET', key .. ':a', ARGV[i]) == ARGV[i + 1] then
    accepted[#accepted + 1] = now
    accepted[#accepted + 1] = name
    ends_of[#ends_of + 1] = now + STORED_MS
    ends_of[#ends_of + 1] = ARGV[i]
  elseif not redis.call('ZSCORE', key .. ':x', name) then
    ended[#ended + 1] = ARGV[i]
  end
end
each_chunk(accepted, function(part) redis.call('ZADD', key .. ':x', unpack(part)) end)
each_chunk(ends_of, function(part) redis.call('ZADD', key .. ':l', 'GT', unpack(part)) end)
redis.call('ZREMRANGEBYSCORE', key .. ':x', '-inf', now - ACCEPTED_MS)
redis.call('ZREMRANGEBYRANK', key .. ':x', 0, -MOST_ACCEPTED - 1)
redis.call('PEXPIRE', key .. ':x', ACCEPTED_MS)
return ended
