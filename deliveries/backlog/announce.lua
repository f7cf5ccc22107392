-- announce(; subscription, kept) -> the new epoch
--
-- Notes that a subscription's settings have changed. One step, so that no worker learns of an epoch before the change.
--   ARGV[1]  the subscription   ARGV[2]  for how many epochs a change is kept
-- Owns ph:epoch and ph:changed, sorted set: subscription -> epoch of its last change
local epoch = redis.call('INCR', PREFIX .. 'epoch')
redis.call('ZADD', PREFIX .. 'changed', epoch, ARGV[1])
redis.call('ZREMRANGEBYSCORE', PREFIX .. 'changed', '-inf', epoch - tonumber(ARGV[2]))
return epoch
