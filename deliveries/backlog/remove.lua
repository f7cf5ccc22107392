-- remove(lane; limit, generation, all, id, ...) -> {late, generation}
--
-- Forgets deliveries that have left the database, unless they are of another generation of the lane. `late` are then those that
-- wait in this `generation`: a seek may have brought them back (late.py).
--   KEYS[1]  the lane   ARGV[1]  how many may wait in Redis
--   ARGV[2]  the generation in which they left the database, or "" for each
--   ARGV[3]  1 for those in whatever place, or 0 for those that wait
--   ARGV[4..]  the deliveries
-- Owns every key of the lane (common.lua).
local key = KEYS[1]
local lane = lane_of(key)
local state = load_state(key)
if not state then return {{}, ''} end
local is_late = not is_of_generation(key, ARGV[2])
local named, ids, places = {}, {}, {}
for i = 4, #ARGV do named[#named + 1] = ARGV[i] end
each_chunk(named, function(part)
  for i, place in ipairs(redis.call('HMGET', key .. ':d', unpack(part))) do
    if is_waiting(place) or place and not is_late and ARGV[3] == '1' then
      ids[#ids + 1] = part[i]
      places[#ids] = place
    end
  end
end)
if is_late then return {ids, state.generation} end
forget_deliveries(key, state, ids, places)
pump(lane, state, now_ms(), tonumber(ARGV[1]))
save_state(key, state)
-- The next messages of their ordering keys may go.
if state.mode == PULL and state.ordered == 1 then ring_pullers(lane) end
return {{}, state.generation}
