-- lease(lane; count, deadline, limit, minimum, maximum)
--   -> {id, message, times leased, ...; page's first id or "", its seq; when the leases lapse (ms)}
--
-- Leases what is due again and the next of the backlog to a puller, and gives up leases that have lapsed.
--   KEYS[1]  the lane
--   ARGV[1]  at most that many   ARGV[2]  how long the leases last, in ms   ARGV[3]  how many may wait here
--   ARGV[4..5]  bounds of the subscription's own countdown in ms, or 0: what lapsed is due at once
-- When the backlog runs low the caller gets the next page to read: no worker is needed for pulling.
-- Returns false for a lane that Redis does not know. Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local now = now_ms()
local limit = tonumber(ARGV[3])
local state = load_state(key)
if not state then return false end
if state.mode ~= 2 then return {{}, '', '0', 0} end

lapse(key, now, tonumber(ARGV[4]), tonumber(ARGV[5]))
-- What is leased is kept here as well, so a puller who takes and takes must be stopped somewhere.
local free = math.min(tonumber(ARGV[1]), 4 * limit - redis.call('ZCARD', key .. ':l'))
local leased, ends = {}, now + tonumber(ARGV[2])
local function lease(ids, messages)
  for i, id in ipairs(ids) do
    redis.call('HSET', key .. ':d', id, 'l')
    redis.call('ZADD', key .. ':l', ends, id)
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
  state.paging = now + PAGING_MS
  page, seq = state.cur, tostring(state.seq)
end
save_state(key, state)
return {leased, page, seq, ends}
