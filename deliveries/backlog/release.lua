-- release(lane; limit, generation, id, ...) -> 1
--
-- Forgets deliveries that a puller acknowledged, in whatever place they are. They must have left the database already.
--   KEYS[1]  the lane   ARGV[1]  how many may wait in Redis
--   ARGV[2]  the generation in which they were leased, or "" if they are no longer owed for another reason
--   ARGV[3..]  the deliveries
-- Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local state = load_state(key)
if not state or not is_of_generation(key, ARGV[2]) then return 1 end
local named, ids, places = {}, {}, {}
for i = 3, #ARGV do named[#named + 1] = ARGV[i] end
each_chunk(named, function(part)
  for i, place in ipairs(redis.call('HMGET', key .. ':d', unpack(part))) do
    if place then
      ids[#ids + 1] = part[i]
      places[#ids] = place
    end
  end
end)
forget_deliveries(key, state, ids, places)
pump(lane, state, now_ms(), tonumber(ARGV[1]))
save_state(key, state)
-- The next messages of their ordering keys may go.
if state.mode == PULL and state.ordered == 1 then ring_pullers(lane) end
return 1
