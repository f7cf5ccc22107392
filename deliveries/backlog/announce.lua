-- announce(changed; subscription, kept) -> the new epoch
--
-- Notes that a subscription's settings have changed. One step, so that no worker learns of an epoch before the change.
--   KEYS[1]  ph:changed, a sorted set: subscription -> epoch of its last change
--   ARGV[1]  the subscription   ARGV[2]  for how many epochs a change is kept. Owns ph:epoch too
local epoch = redis.call('INCR', PREFIX .. 'epoch')
redis.call('ZADD', KEYS[1], epoch, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', epoch - tonumber(ARGV[2]))
return epoch
