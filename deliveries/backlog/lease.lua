-- lease(lane; count, deadline, limit, minimum, maximum, dice, puller)
--   -> {{id, message, times leased, attempts, ...}, the wanted page as request_page returns it or nothing, when the leases
--       end in ms, the lane's generation}
--
-- Leases due retries and the next of the backlog to a puller, and ends leases that have lapsed. `attempts` are the
-- leases that cost the delivery an attempt, this one included.
--   KEYS[1]  the lane
--   ARGV[1]  at most this many   ARGV[2]  how long the leases last, in ms   ARGV[3]  how many may wait in Redis
--   ARGV[4..5]  the bounds of the subscription's retry policy in ms; 0 and 0: lapsed messages are due at once
--   ARGV[6]  a number in [0, 1) for the jitter of the countdown, and for whose turn it is
--   ARGV[7]  the puller: messages of an ordering key go to one puller while it holds leases of the key
-- When the backlog runs low, the caller is asked to read the next page, so that pulling needs no worker.
-- Returns false for a lane that Redis does not know. Owns every key of the lane (common.lua).
local key = KEYS[1]
local lane = lane_of(key)
local now = now_ms()
local limit = tonumber(ARGV[3])
local puller = ARGV[7]
local state = load_state(key)
if not state then return false end
local ends = now + tonumber(ARGV[2])
if state.mode ~= PULL then return {{}, {}, ends, state.generation} end

state.pumped_ms = now
local dice = tonumber(ARGV[6])
lapse(key, state, now, tonumber(ARGV[4]), tonumber(ARGV[5]), dice)
-- Leased messages stay in Redis too, so the number of leases is bounded.
local free = math.min(tonumber(ARGV[1]), MOST_LEASED * limit - redis.call('ZCARD', key .. ':l'))
local were_taken_back = redis.call('EXISTS', key .. ':e') == 1
local leased = {}
local function lease(ids, messages)
  local scores, texts, counts = {}, {}, {}
  local before, taken_back = {}, {}
  each_chunk(ids, function(part)
    for _, times in ipairs(redis.call('HMGET', key .. ':a', unpack(part))) do before[#before + 1] = times end
    if not were_taken_back then return end
    for _, times in ipairs(redis.call('HMGET', key .. ':e', unpack(part))) do taken_back[#taken_back + 1] = times end
  end)
  for i, id in ipairs(ids) do
    local times = (tonumber(before[i]) or 0) + 1
    if times > 1 then redis.call('ZREM', key .. ':x', id .. ' ' .. times - 1) end
    scores[#scores + 1] = ends
    scores[#scores + 1] = id
    texts[#texts + 1] = id
    texts[#texts + 1] = messages[i]
    counts[#counts + 1] = id
    counts[#counts + 1] = times
    leased[#leased + 1] = id
    leased[#leased + 1] = messages[i]
    leased[#leased + 1] = times
    leased[#leased + 1] = times - (tonumber(taken_back[i]) or 0)
  end
  each_chunk(ids, function(part) set_places(key, part, LEASED) end)
  each_chunk(counts, function(part) redis.call('HSET', key .. ':a', unpack(part)) end)
  each_chunk(scores, function(part) redis.call('ZADD', key .. ':l', unpack(part)) end)
  each_chunk(texts, function(part) redis.call('HSET', key .. ':m', unpack(part)) end)
  free = free - #ids
end

-- Those of the retries that may go to this puller; the others are parked.
local function taken(ids, messages)
  if state.ordered == 0 then return ids, messages end
  local orderings = redis.call('HMGET', key .. ':o', unpack(ids))
  local taken_ids, taken_messages = {}, {}
  for i, id in ipairs(ids) do
    if take_key(key, state, id, orderings[i], messages[i], puller) then
      taken_ids[#taken_ids + 1] = id
      taken_messages[#taken_messages + 1] = messages[i]
    end
  end
  return taken_ids, taken_messages
end

-- Leases up to `most` due retries. In an ordered lane, a message that is leased makes the next of its key due.
local function lease_retries(most)
  while most > 0 do
    local ids, messages = due_retries(key, most, now)
    if #ids == 0 then return end
    lease(taken(ids, messages))
    most = most - #ids
  end
end

-- Retries come first, but have half of the room while others wait: those that are nacked again and again would keep them back.
lease_retries(math.floor(free / 2 + dice))
if free > 0 then lease(next_ready(key, state, free, puller)) end
lease_retries(free)

local page = {}
if runs_low(key, state, now, limit) then page = {request_page(key, state, now, limit)} end
save_state(key, state)
return {leased, page, ends, state.generation}
