-- Shared by every verb: this file and rules.lua are put in front of each verb's script.
--
-- A lane is one (subscription, region); its keys, with P = "ph:<subscription>:<region>":
--   P:s  hash    state: mode, out, cur, spill, seq, paging, and the fields of rules.lua
--   P:d  hash    delivery -> where it is: 'b' in the backlog, 't' holding a token, 'r' in the retry set
--   P:b  list    the head of the backlog: complete Celery messages in publish order, oldest on the left
--   P:z  zset    retry set: delivery -> when it is due (ms)
--   P:m  hash    delivery -> Celery message, of those in the retry set
-- A delivery is named by its message id. All lanes share:
--   ph:wake                zset  lane -> when it next needs a pump (ms)
--   ph:page                set   lanes that want the next page of their backlog from the database
--   ph:bell:<region>       list  holds one entry while a sleeping worker should look at the queue
--   deliveries.<region>    list  kombu's queue; pushed on the left, taken on the right
--
-- State: mode 1 = push, 0 = paused, pull or detached; out = tokens held; spill 1 = some rows of the database from
-- id `cur` on are not here; seq = how often that was said; paging = until when (ms) a worker has the next page in hand;
-- credit = how many more may go out, as of the time `pumped` (ms).

local PREFIX = 'ph:'
local STATE = {'mode', 'out', 'cur', 'spill', 'seq', 'paging', 'credit', 'pumped', unpack(RULE_FIELDS)}
local CHUNK = 500
--- A page that was promised and did not come is asked for again after this long.
local PAGING_MS = 5000
--- Whoever waits in a queue has at most about so many before it: a lane with more to send fills the queue in slices, a
--- moment apart, between which its neighbours' messages come in. A short lane always gets its first few in.
local QUEUE_DEPTH, SHORT_SLICE, SLICE_MS = 300, 16, 4
--- Tokens that come back may go out again at once. Beyond that a lane's outstanding grow by so many a millisecond, with
--- a burst for a start: a window of thousands that opens all at once would take every worker's time from its neighbours.
local GROWTH_PER_MS, GROWTH_BURST = 3, 150

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The lane's state, or nil when Redis knows nothing of it (new, or wiped).
local function load_state(key)
  local values = redis.call('HMGET', key .. ':s', unpack(STATE))
  if not values[1] then return nil end
  -- A field that an older version did not write has its first value.
  local state = rules_new()
  state.credit, state.pumped = 0, 0
  for i, name in ipairs(STATE) do
    -- Ids do not fit a double: `cur` stays text.
    if name == 'cur' then
      state[name] = values[i]
    elseif values[i] then
      state[name] = tonumber(values[i])
    end
  end
  return state
end

local function save_state(key, state)
  local fields = {}
  for _, name in ipairs(STATE) do
    local value = state[name]
    if value ~= nil then
      fields[#fields + 1] = name
      fields[#fields + 1] = type(value) == 'number' and string.format('%.17g', value) or value
    end
  end
  redis.call('HSET', key .. ':s', unpack(fields))
end

local function new_state(mode, spilled)
  local state = rules_new()
  state.mode, state.out, state.cur, state.seq, state.paging = mode, 0, '0', 0, 0
  state.spill = spilled and 1 or 0
  state.credit, state.pumped = 0, 0
  return state
end

-- Ids are decimal text without leading zeros, beyond what a double holds exactly.
local function id_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- The rows from id `first` on are to be read from the database.
local function spill(state, first)
  if state.spill == 0 or id_less(first, state.cur) then state.cur = first end
  state.spill = 1
  state.seq = state.seq + 1
end

local function ring(region)
  local bell = PREFIX .. 'bell:' .. region
  redis.call('LPUSH', bell, '1')
  redis.call('LTRIM', bell, 0, 0)
end

local function each_chunk(list, fn)
  for first = 1, #list, CHUNK do
    local part = {}
    for i = first, math.min(first + CHUNK - 1, #list) do part[#part + 1] = list[i] end
    fn(part)
  end
end

-- Writes `where` for each of `ids` into the lane's hash of deliveries.
local function set_where(key, ids, where)
  local fields = {}
  for i, id in ipairs(ids) do
    fields[2 * i - 1] = id
    fields[2 * i] = where
  end
  redis.call('HSET', key .. ':d', unpack(fields))
end

local function message_id(message) return string.match(message, '^{"headers":{"id":"(%d+)') end

-- Retries that are due, up to `free`, into the queue.
local function pump_retries(key, queue, free, now)
  local due = redis.call('ZRANGEBYSCORE', key .. ':z', '-inf', now, 'LIMIT', 0, math.min(free, CHUNK))
  if #due == 0 then return 0 end
  local messages = redis.call('HMGET', key .. ':m', unpack(due))
  redis.call('ZREM', key .. ':z', unpack(due))
  redis.call('HDEL', key .. ':m', unpack(due))
  set_where(key, due, 't')
  redis.call('LPUSH', queue, unpack(messages))
  return #due
end

-- The next of the backlog, up to `free`, into the queue; those settled meanwhile are left out.
local function pump_backlog(key, queue, free)
  local moved = 0
  while free > 0 do
    local messages = redis.call('LPOP', key .. ':b', math.min(free, CHUNK))
    if not messages or #messages == 0 then break end
    local ids, kept = {}, {}
    for i, message in ipairs(messages) do ids[i] = message_id(message) end
    local where = redis.call('HMGET', key .. ':d', unpack(ids))
    local moving = {}
    for i, message in ipairs(messages) do
      if where[i] == 'b' then
        moving[#moving + 1] = ids[i]
        kept[#kept + 1] = message
      end
    end
    if #kept > 0 then
      set_where(key, moving, 't')
      redis.call('LPUSH', queue, unpack(kept))
      moved = moved + #kept
      free = free - #kept
    end
  end
  return moved
end

-- Says when the lane must be looked at again, or that nothing but an event will change it. `is_cut`: its window has room
-- for more than the queue took.
local function schedule(lane, key, state, now, is_cut)
  local at = nil
  if is_cut then
    at = now + SLICE_MS
  elseif state.mode == 1 then
    local waiting = redis.call('ZRANGE', key .. ':z', 0, 0, 'WITHSCORES')
    if now < state.resume then
      if waiting[1] or redis.call('EXISTS', key .. ':b') == 1 or state.spill == 1 then at = state.resume end
    elseif state.out < rules_window(state) and waiting[1] then
      at = tonumber(waiting[2])
    end
    local bucket_at = rules_bucket_wait(state, now)
    if bucket_at and (waiting[1] or redis.call('EXISTS', key .. ':b') == 1) then at = math.max(at or 0, bucket_at) end
  end
  -- The page that was promised may never come.
  if state.paging > now then at = math.min(at or state.paging + 1, state.paging + 1) end
  if at then
    redis.call('ZADD', PREFIX .. 'wake', math.max(at, now + 1), lane)
  else
    redis.call('ZREM', PREFIX .. 'wake', lane)
  end
end

-- Asks a worker for the next page when the head of the backlog runs low.
local function want_page(lane, key, state, now, low)
  if state.spill == 1 and state.mode == 1 and state.paging <= now and redis.call('LLEN', key .. ':b') < low then
    redis.call('SADD', PREFIX .. 'page', lane)
    return true
  end
  return false
end

-- How many of `free` may go out now, with `returned` tokens just come back.
local function slice(state, now, queue, free, returned)
  local grown = math.min(state.credit + GROWTH_PER_MS * math.max(now - state.pumped, 0), GROWTH_BURST)
  state.credit = math.min(math.max(state.credit, grown) + returned, SLOW_START_LIMIT)
  state.pumped = now
  local room = math.max(QUEUE_DEPTH - redis.call('LLEN', queue), SHORT_SLICE)
  return math.min(free, math.max(state.credit, 1), room)
end

-- Moves what the window has room for into the queue. Returns how many, and whether a page is wanted.
local function pump(lane, state, now, limit, returned)
  local key = PREFIX .. lane
  local region = string.match(lane, ':(.+)$')
  local queue = 'deliveries.' .. region
  local moved, is_cut = 0, false
  if state.mode == 1 and now >= state.resume then
    local free = rules_free(state, now)
    if free > 0 then
      local now_free = slice(state, now, queue, free, returned or 0)
      is_cut = now_free < free
      free = now_free
      moved = pump_retries(key, queue, free, now)
      -- With that many waiting for their retry the lane takes nothing new: its memory stays bounded.
      if moved < free and redis.call('ZCARD', key .. ':z') < limit then
        moved = moved + pump_backlog(key, queue, free - moved)
      end
      is_cut = is_cut and moved == free
      -- A lane with nothing more to send keeps no more than a burst.
      state.credit = math.max(moved == free and state.credit - moved or math.min(state.credit - moved, GROWTH_BURST), 0)
    end
    if moved > 0 then
      state.out = state.out + moved
      rules_spend(state, now, moved)
      if redis.call('LLEN', queue) == moved then ring(region) end
    end
  end
  schedule(lane, key, state, now, is_cut)
  local page = want_page(lane, key, state, now, limit / 2)
  if page then ring(region) end
  return moved, page
end
