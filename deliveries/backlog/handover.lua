-- handover(lane; puller) -> 1
--
-- Leaves the ordering keys of a stream that has closed to the other streams of its client, while some of its leases go on:
-- the client still works on those messages, and puts later ones of their keys behind them. Other pullers wait until the
-- leases end.
--   KEYS[1]  the lane   ARGV[1]  the puller, whose name begins with its client
-- Owns every key of the lane (common.lua).
local key = KEYS[1]
local puller = ARGV[1]
local state = load_state(key)
if not state then return 1 end
local owners = redis.call('HGETALL', key .. ':v')
local has_left = false
for i = 1, #owners, 2 do
  if owners[i + 1] == puller then
    redis.call('HSET', key .. ':v', owners[i], client_of(puller))
    if redis.call('HGET', key .. ':k', owners[i]) == '*' then next_of_key(key, state, owners[i]) end
    has_left = true
  end
end
save_state(key, state)
-- A bell that nobody hears would stay.
if has_left then ring_pullers(lane_of(key)) end
return 1
