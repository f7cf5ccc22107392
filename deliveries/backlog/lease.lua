-- lease(lane; count, deadline, limit, minimum, maximum, dice)
--   -> {{id, message, times leased, ...}, first id of the page or "", spill count}
--
-- Leases due retries and then the next of the backlog to a puller, and ends leases that have lapsed.
--   KEYS[1]  the lane
--   ARGV[1]  at most this many   ARGV[2]  how long the leases last, in ms   ARGV[3]  how many may wait in Redis
--   ARGV[4..5]  the bounds of the subscription's retry policy in ms; 0 and 0: lapsed messages are due at once
--   ARGV[6]  a number in [0, 1) for the jitter of the countdown
-- When the backlog runs low, the caller is asked to read the next page, so that pulling needs no worker.
-- Returns false for a lane that Redis does not know. Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local now = now_ms()
local limit = tonumber(ARGV[3])
local state = load_state(key)
if not state then return false end
if state.mode ~= PULL then return {{}, '', '0'} end

lapse(key, now, tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]))
-- Leased messages stay in Redis too, so the number of leases is bounded.
local free = math.min(tonumber(ARGV[1]), 4 * limit - redis.call('ZCARD', key .. ':l'))
local leased = {}
local function lease(ids, messages)
  for i, id in ipairs(ids) do
    redis.call('HSET', key .. ':d', id, LEASED)
    redis.call('ZADD', key .. ':l', now + tonumber(ARGV[2]), id)
    redis.call('HSET', key .. ':m', id, messages[i])
    leased[#leased + 1] = id
    leased[#leased + 1] = messages[i]
    leased[#leased + 1] = redis.call('HINCRBY', key .. ':a', id, 1)
  end
  free = free - #ids
end
if free > 0 then lease(due_retries(key, free, now)) end
if free > 0 then lease(next_ready(key, state, free)) end

local page, seq = '', '0'
if runs_low(key, state, now, limit / 2) then
  state.paging_until_ms = now + PAGING_MS
  page, seq = state.cursor, tostring(state.spill_count)
end
save_state(key, state)
return {leased, page, seq}
