-- repair(lane; limit, generation, id ...) -> how many tokens were taken back
--
-- Takes back the tokens of lost deliveries, which are then read from the database again, and recounts the lane's tokens.
--   KEYS[1]  the lane   ARGV[1]  how many may wait in Redis   ARGV[2]  the generation in which they were lost
--   ARGV[3..]  the deliveries
-- Owns every key of the lane (common.lua).
local key = KEYS[1]
local lane = lane_of(key)
local now = now_ms()
local state = load_state(key)
if not state or state.generation ~= ARGV[2] then return 0 end
local taken = 0
for i = 3, #ARGV do
  if redis.call('HGET', key .. ':d', ARGV[i]) == OUTSTANDING then
    redis.call('HDEL', key .. ':d', ARGV[i])
    redis.call('HDEL', key .. ':o', ARGV[i])
    spill(key, state, ARGV[i])
    taken = taken + 1
  end
end
if taken > 0 and state.ordered == 1 then
  clear_waiting(key, state)
  spill(key, state, '0')
end
state.outstanding = 0
for _, place in ipairs(redis.call('HVALS', key .. ':d')) do
  if place == OUTSTANDING then state.outstanding = state.outstanding + 1 end
end
pump(lane, state, now, tonumber(ARGV[1]))
save_state(key, state)
return taken
