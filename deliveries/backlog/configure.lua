-- configure(lane; mode, limit, action, from, cap, rate, burst, ordered, push_config, generation) -> 1
--
-- Passes the settings of a subscription on to a lane.
--   KEYS[1]  the lane
--   ARGV[1]  mode: 0 paused or detached, 1 push, 2 pull   ARGV[2]  how many may wait in Redis
--   ARGV[3]  "new": set the mode; a lane unknown to Redis is created with nothing waiting
--            "known": set the mode; a lane unknown to Redis is created as spilled, so that it reads the database
--            "spill": like "known", and everything from the id in ARGV[4] on must be read from the database again
--            "anew": like "known", and past results no longer count
--   ARGV[5..7]  the subscription's own limits: outstanding, messages a second, burst; 0 is none
--   ARGV[8]  1 if messages of an ordering key go out in order   ARGV[9]  the push_config of common.lua
--   ARGV[10]  the generation of a lane that is created
-- A lane that is paused forgets what waits in Redis (the database has it) and keeps deliveries with a token or a lease. When
-- it is resumed, it reads the database from the start. So does an ordered lane that moves between push and pull. Past results
-- no longer count when push begins or the push requests change: slow start begins, and all retries are due. Owns every key of
-- the lane (common.lua).
local key = KEYS[1]
local lane = lane_of(key)
local now = now_ms()
local mode, action, ordered, push_config = tonumber(ARGV[1]), ARGV[3], tonumber(ARGV[8]), tonumber(ARGV[9])
local state = load_state(key)
if not state then
  state = new_state(mode, action ~= 'new', ARGV[10])
  state.ordered = ordered
end

-- An endpoint gets one message of a key at a time: pullers keep the first lease of each key, and lose the others.
local function keep_first_leases()
  for _, ordering in ipairs(redis.call('HKEYS', key .. ':v')) do
    local leased = redis.call('LRANGE', key .. ':u:' .. ordering, 0, -1)
    redis.call('DEL', key .. ':u:' .. ordering)
    redis.call('HSET', key .. ':k', ordering, leased[1])
    for i = 2, #leased do
      redis.call('ZREM', key .. ':l', leased[i])
      redis.call('HSET', key .. ':d', leased[i], PARKED)
    end
  end
  redis.call('DEL', key .. ':v')
end

local moves = ordered == 1 and mode ~= state.mode
local changes = (mode == IDLE) ~= (state.mode == IDLE) or ordered ~= state.ordered or moves
local is_other = state.push_config ~= 0 and state.push_config ~= push_config
if mode == PUSH and (action == 'anew' or state.mode ~= PUSH or is_other) then
  rules_restart(state, now)
  hurry_retries(key, now)
end
if moves and mode == PUSH then keep_first_leases() end
state.mode, state.ordered, state.push_config = mode, ordered, push_config
state.cap, state.rate, state.burst = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
if changes or (action == 'spill' and ordered == 1) then
  clear_waiting(key, state)
  spill(key, state, '0')
elseif action == 'spill' then
  spill(key, state, ARGV[4])
end
pump(lane, state, now, tonumber(ARGV[2]))
save_state(key, state)
if mode == PULL then ring_pullers(lane) end
return 1
