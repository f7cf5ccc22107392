-- lease(lane; count, deadline, limit, minimum, maximum, puller)
--   -> {id, message, times leased, attempts, ...; page's first id or "", its seq; when the leases end, ms}
--
-- Leases what is due again and the next of the backlog to a puller, and gives up leases that have lapsed. `attempts` are
-- the leases that cost the delivery an attempt, this one included.
--   KEYS[1]  the lane
--   ARGV[1]  at most that many   ARGV[2]  how long the leases last, in ms   ARGV[3]  how many may wait here
--   ARGV[4..5]  bounds of the subscription's own countdown in ms, or 0: what lapsed is due at once
--   ARGV[6]  the puller: messages of an ordering key go to one puller while it holds leases of the key
-- When the backlog runs low the caller gets the next page to read: no worker is needed for pulling.
-- Returns false for a lane that Redis does not know. Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local now = now_ms()
local limit = tonumber(ARGV[3])
local puller = ARGV[6]
local state = load_state(key)
if not state then return false end
local ends = now + tonumber(ARGV[2])
if state.mode ~= 2 then return {{}, '', '0', ends} end

lapse(key, state, now, tonumber(ARGV[4]), tonumber(ARGV[5]))
-- What is leased is kept here as well, so a puller who takes and takes must be stopped somewhere.
local free = math.min(tonumber(ARGV[1]), 4 * limit - redis.call('ZCARD', key .. ':l'))
local were_taken_back = redis.call('EXISTS', key .. ':e') == 1
local leased = {}
local function lease(id, message)
  redis.call('HSET', key .. ':d', id, 'l')
  redis.call('ZADD', key .. ':l', ends, id)
  redis.call('HSET', key .. ':m', id, message)
  local times = redis.call('HINCRBY', key .. ':a', id, 1)
  leased[#leased + 1] = id
  leased[#leased + 1] = message
  leased[#leased + 1] = times
  leased[#leased + 1] = times - (were_taken_back and tonumber(redis.call('HGET', key .. ':e', id)) or 0)
  free = free - 1
end

-- A message that is leased makes the next of its key due.
while free > 0 do
  local ids, messages = due_retries(key, free, now)
  if #ids == 0 then break end
  for i, id in ipairs(ids) do
    if state.ordered == 0 or take_key(key, state, id, messages[i], puller) then lease(id, messages[i]) end
  end
end
if free > 0 then
  local ids, messages = next_ready(key, state, free, puller)
  for i, id in ipairs(ids) do lease(id, messages[i]) end
end

local page, seq = '', '0'
if runs_low(key, state, now, limit / 2) then
  state.paging = now + PAGING_MS
  page, seq = state.cur, tostring(state.seq)
end
save_state(key, state)
return {leased, page, seq, ends}
