-- configure(lane; mode, limit, action, from, cap, rate, burst) -> 1
--
-- Tells a lane how its subscription stands now.
--   KEYS[1]  the lane
--   ARGV[1]  mode: 1 push, 0 paused, pull or detached   ARGV[2]  how many may wait here
--   ARGV[3]  "new": create the lane if Redis does not know it, with nothing waiting
--            "known": set the mode; a lane unknown to Redis is created as spilled, so that it reads the database
--            "spill": besides, read again from the database all from the id in ARGV[4] on
--   ARGV[5..7]  the subscription's own limits: outstanding, messages a second, burst; 0 is none
-- A lane that leaves push forgets what waits here (the database has it) and keeps what holds a token until it settles;
-- when it comes to push it reads the database from the start, as a publish offers nothing to a lane that isn't pushed. Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local now = now_ms()
local mode = tonumber(ARGV[1])
local state = load_state(key)
if not state then state = new_state(mode, ARGV[3] ~= 'new') end

if mode == 0 and state.mode == 1 then
  local waiting = redis.call('ZRANGE', key .. ':z', 0, -1)
  each_chunk(waiting, function(part) redis.call('HDEL', key .. ':d', unpack(part)) end)
  local messages = redis.call('LRANGE', key .. ':b', 0, -1)
  for i, message in ipairs(messages) do messages[i] = message_id(message) end
  each_chunk(messages, function(part) redis.call('HDEL', key .. ':d', unpack(part)) end)
  redis.call('DEL', key .. ':b', key .. ':z', key .. ':m')
end
if mode ~= state.mode then spill(state, '0') end
state.mode = mode
state.cap, state.rate, state.burst = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
if ARGV[3] == 'spill' then spill(state, ARGV[4]) end
pump(lane, state, now, tonumber(ARGV[2]))
save_state(key, state)
return 1
