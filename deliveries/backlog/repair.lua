-- repair(lane; limit, id ...) -> how many tokens were taken back
--
-- Takes back the tokens of deliveries that nobody holds; they are read from the database again. Also counts the lane's
-- tokens anew.
--   KEYS[1]  the lane   ARGV[1]  how many may wait here   ARGV[2..]  the deliveries
-- Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local now = now_ms()
local state = load_state(key)
if not state then return 0 end
local taken = 0
for i = 2, #ARGV do
  if redis.call('HGET', key .. ':d', ARGV[i]) == 't' then
    redis.call('HDEL', key .. ':d', ARGV[i])
    spill(state, ARGV[i])
    taken = taken + 1
  end
end
if taken > 0 and state.ordered == 1 then
  clear_waiting(key, state)
  spill(state, '0')
end
state.out = 0
for _, where in ipairs(redis.call('HVALS', key .. ':d')) do
  if where == 't' then state.out = state.out + 1 end
end
pump(lane, state, now, tonumber(ARGV[1]))
save_state(key, state)
return taken
