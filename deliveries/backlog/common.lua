-- Shared by every verb: each verb's script begins with the names of codes.py, rules.lua and this file.
--
-- A lane is one (subscription, region); its keys, with P = "ph:<subscription>:<region>":
--   P:s  hash    the lane's state, described below; codes.py has the short name of each field
--   P:d  hash    delivery -> its place: WAITING in the backlog, OUTSTANDING with a token, RETRYING in the retry set, LEASED
--                to a puller, PARKED behind an earlier message of its ordering key, or ACKNOWLEDGED by a puller while an
--                earlier message of its key is still leased (codes.py has the letters)
--   P:b  list    the head of the backlog: complete Celery messages in publish order, oldest on the left
--   P:z  zset    retry set: delivery -> when it is due (ms)
--   P:l  zset    leases: delivery -> when the lease lapses (ms)
--   P:a  hash    delivery -> how often it was leased, which is part of its ack id
--   P:e  hash    delivery -> how many of its leases were taken back, which cost it no attempt
--   P:m  hash    delivery -> Celery message, for deliveries that are retrying, leased or parked
--   P:o  hash    delivery -> digest of its ordering key; ordered lanes only
--   P:k  hash    ordering key -> the delivery that is next among the waiting ones of the key. It holds a token while it is
--                pushed. "*" stands for the first parked delivery, which waits until another puller's leases end
--   P:q:<key>  list  the deliveries parked behind the next one, in publish order
--   P:u:<key>  list  the key's deliveries that pullers have leased, in publish order; they come before P:k
--   P:v  hash    ordering key -> the puller that holds those leases: no other puller gets messages of the key meanwhile
-- A delivery is named by its message id. All lanes share:
--   ph:wake                zset  lane -> when it next needs a pump (ms)
--   ph:page                set   lanes that need the next page of their backlog from the database
--   ph:bell:<region>       list  holds an entry while a sleeping worker should look at the queue
--   ph:counters            hash  the counters of /metrics; see deliveries/counters
--   ph:pull:<subscription> list  holds one entry while a waiting puller should look at the lanes
--   deliveries.<region>    list  kombu's queue; pushed on the left, taken on the right
--
-- The fields of the state besides those of rules.lua:
--   mode             0 = paused or detached, 1 = push, 2 = pull
--   outstanding      tokens held
--   spilled          1 if the database has rows that are not in Redis, from the id `cursor` on
--   cursor           see spilled; text, because a double can't hold an id
--   spill_count      how often the lane was told that it is spilled
--   paging_until_ms  the time until which a worker is expected to bring the next page
--   credit           how many more deliveries may go out, as of the time pumped_ms
--   pumped_ms        see credit
--   ordered          1 if messages of an ordering key go out in order: one at a time to an endpoint, many to a puller
--   parked           how many deliveries wait for their ordering key
--
-- An ordered lane reads its backlog from the database only, in the order of ids, so that a publisher's lost offer cannot
-- swap two messages of a key. If any of it must be read again, everything that waits is read again.

local PREFIX = 'ph:'
local IDLE, PUSH, PULL = 0, 1, 2
local CHUNK = 500
--- A page that did not arrive is requested again after this time.
local PAGING_MS = 5000
--- The queue holds about this many messages at most. A lane with more to send fills the queue in slices, SLICE_MS apart,
--- so that messages of other lanes get in between. Every lane may always add SHORT_SLICE messages.
local QUEUE_DEPTH, SHORT_SLICE, SLICE_MS = 300, 16, 10
--- Returned tokens may be used again at once. Beyond that a lane's outstanding messages grow by GROWTH_PER_MS, after an
--- initial burst. A window of thousands that opened at once would take every worker's time from other lanes.
local GROWTH_PER_MS, GROWTH_BURST = 3, 150
--- An acknowledged delivery that waits for an earlier delivery of its key is checked this often.
local ACKNOWLEDGED_MS = 60000
--- A sleeping worker looks at the lanes at least this often (push/transport.py). If a lane is due sooner, a worker must be
--- rung.
local SLEEP_MS = 2000
--- Set by the verb whose reply tells its worker when the next lane is due: no ring is needed for that.
local tells_wake = false

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Sets the fields of a state that rules.lua does not own and that begin with 0.
local function add_pump_fields(state) state.credit, state.pumped_ms, state.ordered, state.parked = 0, 0, 0, 0 end

-- Returns the lane's state, or nil for a lane that Redis does not have (new, or wiped). The fields that were read are in the
-- metatable, and fields that are assigned later are in the table itself: save_state writes only the latter.
local function load_state(key)
  local values = redis.call('HGETALL', key .. ':s')
  local loaded, count = {}, 0
  for i = 1, #values, 2 do
    local name = STATE_NAMES[values[i]]
    if name then
      loaded[name] = name == 'cursor' and values[i + 1] or tonumber(values[i + 1])
      count = count + 1
    end
  end
  if not loaded.mode then return nil end
  if count < STATE_COUNT then
    -- An older version wrote the state: its missing fields get their initial values, and all fields are written.
    local first = rules_new()
    add_pump_fields(first)
    for name, value in pairs(first) do
      if loaded[name] == nil then loaded[name] = value end
    end
    return loaded
  end
  return setmetatable({}, {__index = loaded})
end

local function save_state(key, state)
  local fields = {}
  for name, value in pairs(state) do
    fields[#fields + 1] = STATE_CODES[name]
    fields[#fields + 1] = type(value) == 'number' and string.format('%.17g', value) or value
  end
  if #fields > 0 then redis.call('HSET', key .. ':s', unpack(fields)) end
end

local function new_state(mode, spilled)
  local state = rules_new()
  state.mode, state.outstanding, state.cursor, state.spill_count, state.paging_until_ms = mode, 0, '0', 0, 0
  state.spilled = spilled and 1 or 0
  add_pump_fields(state)
  return state
end

-- Ids are decimal text without leading zeros, beyond what a double holds exactly.
local function id_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- Records that the rows from id `first` on must be read from the database. An ordered lane never skips rows: it goes on
-- reading at its cursor, so that a row whose offer got lost is read too.
local function spill(state, first)
  if (state.spilled == 0 and state.ordered == 0) or id_less(first, state.cursor) then state.cursor = first end
  state.spilled = 1
  state.spill_count = state.spill_count + 1
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

-- Writes the place of each of `ids` into the lane's hash of deliveries.
local function set_places(key, ids, place)
  local fields = {}
  for i, id in ipairs(ids) do
    fields[2 * i - 1] = id
    fields[2 * i] = place
  end
  redis.call('HSET', key .. ':d', unpack(fields))
end

-- Appends the first `count` of `ids` to the backlog, except those that the lane has already. `message_of(i)` returns the
-- message of ids[i]. In an ordered lane, `orderings` has the digest of each ordering key, or ''.
local function append(key, ids, count, message_of, orderings)
  for first = 1, count, CHUNK do
    local last = math.min(first + CHUNK - 1, count)
    local places = redis.call('HMGET', key .. ':d', unpack(ids, first, last))
    local fresh, messages, keys = {}, {}, {}
    for i = first, last do
      if not places[i - first + 1] then
        fresh[#fresh + 1] = ids[i]
        messages[#messages + 1] = message_of(i)
        local ordering = orderings and orderings[i]
        if ordering and ordering ~= '' then
          keys[#keys + 1] = ids[i]
          keys[#keys + 1] = ordering
        end
      end
    end
    if #keys > 0 then redis.call('HSET', key .. ':o', unpack(keys)) end
    if #fresh > 0 then
      set_places(key, fresh, WAITING)
      redis.call('RPUSH', key .. ':b', unpack(messages))
    end
  end
end

local function message_id(message) return string.match(message, '^{"headers":{"id":"(%d+)') end

-- Takes up to `free` due deliveries out of the retry set. Returns their ids and messages.
local function due_retries(key, free, now)
  local due = redis.call('ZRANGEBYSCORE', key .. ':z', '-inf', now, 'LIMIT', 0, math.min(free, CHUNK))
  if #due == 0 then return due, due end
  local messages = redis.call('HMGET', key .. ':m', unpack(due))
  redis.call('ZREM', key .. ':z', unpack(due))
  redis.call('HDEL', key .. ':m', unpack(due))
  return due, messages
end

-- Makes the first parked delivery of a key the next one, which is due at once.
local function next_of_key(key, state, ordering)
  local following = redis.call('LPOP', key .. ':q:' .. ordering)
  if not following then
    redis.call('HDEL', key .. ':k', ordering)
    return
  end
  state.parked = state.parked - 1
  redis.call('HSET', key .. ':k', ordering, following)
  redis.call('HSET', key .. ':d', following, RETRYING)
  redis.call('ZADD', key .. ':z', 0, following)
end

-- Lets a puller lease the next delivery of a key. Returns false if another puller holds leases of the key.
local function lend_key(key, ordering, id, puller)
  local owner = redis.call('HGET', key .. ':v', ordering)
  if owner and owner ~= puller then return false end
  if not owner then redis.call('HSET', key .. ':v', ordering, puller) end
  redis.call('RPUSH', key .. ':u:' .. ordering, id)
  return true
end

-- Returns whether a delivery of an ordered lane may go out now, to `puller` or, without one, to the endpoint. Otherwise it is
-- parked. `ordering` is the digest of its ordering key, or false.
local function take_key(key, state, id, ordering, message, puller)
  if not ordering then return true end
  local holder = redis.call('HGET', key .. ':k', ordering)
  local is_next = not holder or holder == id
  if is_next and not puller then
    redis.call('HSET', key .. ':k', ordering, id)
    return true
  end
  if is_next and lend_key(key, ordering, id, puller) then
    if holder then next_of_key(key, state, ordering) end
    return true
  end
  redis.call('HSET', key .. ':d', id, PARKED)
  redis.call('HSET', key .. ':m', id, message)
  redis.call(holder == id and 'LPUSH' or 'RPUSH', key .. ':q:' .. ordering, id)
  if is_next then redis.call('HSET', key .. ':k', ordering, '*') end
  state.parked = state.parked + 1
  return false
end

-- Takes up to `free` deliveries from the backlog, without those that were settled meanwhile. Returns their ids and messages.
local function next_ready(key, state, free, puller)
  local ids, ready = {}, {}
  while #ids < free do
    local count = math.min(free - #ids, CHUNK)
    local messages = redis.call('LPOP', key .. ':b', count)
    if not messages or #messages == 0 then break end
    local names = {}
    for i, message in ipairs(messages) do names[i] = message_id(message) end
    local where = redis.call('HMGET', key .. ':d', unpack(names))
    local orderings = state.ordered == 1 and redis.call('HMGET', key .. ':o', unpack(names))
    for i, message in ipairs(messages) do
      if where[i] == WAITING and (not orderings or take_key(key, state, names[i], orderings[i], message, puller)) then
        ids[#ids + 1] = names[i]
        ready[#ready + 1] = message
      end
    end
    if #messages < count then break end
  end
  return ids, ready
end

-- Lets the deliveries go that waited for this one, because it has left the lane.
local function free_key(key, state, id, ordering)
  if redis.call('LREM', key .. ':u:' .. ordering, 1, id) == 1 then
    if redis.call('EXISTS', key .. ':u:' .. ordering) == 1 then return end
    redis.call('HDEL', key .. ':v', ordering)
    if redis.call('HGET', key .. ':k', ordering) == '*' then next_of_key(key, state, ordering) end
  elseif redis.call('HGET', key .. ':k', ordering) == id then
    next_of_key(key, state, ordering)
  else
    state.parked = state.parked - redis.call('LREM', key .. ':q:' .. ordering, 0, id)
  end
end

-- Called for a delivery whose lease has ended and that is now in the retry set. Takes back the leases of all later deliveries
-- of its key, acknowledged or not, and parks them behind it. That costs them no attempt.
local function hold_back(key, state, id)
  local ordering = redis.call('HGET', key .. ':o', id)
  if not ordering then return end
  local leased = redis.call('LRANGE', key .. ':u:' .. ordering, 0, -1)
  local place
  for i, other in ipairs(leased) do
    if other == id then place = i end
  end
  if not place then return end
  local waiting = {}
  local holder = redis.call('HGET', key .. ':k', ordering)
  if holder and holder ~= '*' then waiting[1] = holder end
  for i = #leased, place + 1, -1 do waiting[#waiting + 1] = leased[i] end
  for _, later in ipairs(waiting) do
    if redis.call('ZREM', key .. ':l', later) == 1 then
      redis.call('HINCRBY', key .. ':e', later, 1)
    else
      redis.call('ZREM', key .. ':z', later)
    end
    redis.call('HSET', key .. ':d', later, PARKED)
    redis.call('LPUSH', key .. ':q:' .. ordering, later)
  end
  state.parked = state.parked + #waiting
  if place > 1 then
    redis.call('LTRIM', key .. ':u:' .. ordering, 0, place - 2)
  else
    redis.call('DEL', key .. ':u:' .. ordering)
    redis.call('HDEL', key .. ':v', ordering)
  end
  redis.call('HSET', key .. ':k', ordering, id)
end

-- Forgets deliveries that are settled. `where` has the place of each, or false if it has been taken out already.
local function forget_deliveries(key, state, ids, where)
  local leased, kept = {}, {}
  for i, id in ipairs(ids) do
    if where[i] == OUTSTANDING then state.outstanding = math.max(state.outstanding - 1, 0) end
    if where[i] == RETRYING then redis.call('ZREM', key .. ':z', id) end
    if where[i] == LEASED or where[i] == ACKNOWLEDGED then leased[#leased + 1] = id end
    if where[i] and where[i] ~= OUTSTANDING and where[i] ~= WAITING then kept[#kept + 1] = id end
  end
  each_chunk(leased, function(part) redis.call('ZREM', key .. ':l', unpack(part)) end)
  each_chunk(kept, function(part) redis.call('HDEL', key .. ':m', unpack(part)) end)
  local had_leases = redis.call('EXISTS', key .. ':a') == 1
  each_chunk(ids, function(part)
    if state.ordered == 1 then
      local orderings = redis.call('HMGET', key .. ':o', unpack(part))
      for i, id in ipairs(part) do
        if orderings[i] then free_key(key, state, id, orderings[i]) end
      end
      redis.call('HDEL', key .. ':o', unpack(part))
    end
    redis.call('HDEL', key .. ':d', unpack(part))
    if had_leases then
      redis.call('HDEL', key .. ':a', unpack(part))
      redis.call('HDEL', key .. ':e', unpack(part))
    end
  end)
end

-- Forgets all waiting deliveries, which the database has too. Deliveries with a token or a lease stay.
local function clear_waiting(key, state)
  local kept, gone = {}, {}
  local all = redis.call('HGETALL', key .. ':d')
  for i = 1, #all, 2 do
    local where = all[i + 1]
    if where == OUTSTANDING or where == LEASED or where == ACKNOWLEDGED then kept[all[i]] = true else gone[#gone + 1] = all[i] end
  end
  each_chunk(gone, function(part)
    redis.call('HDEL', key .. ':d', unpack(part))
    redis.call('HDEL', key .. ':m', unpack(part))
    redis.call('HDEL', key .. ':a', unpack(part))
    redis.call('HDEL', key .. ':e', unpack(part))
    redis.call('HDEL', key .. ':o', unpack(part))
  end)
  redis.call('DEL', key .. ':b', key .. ':z')
  local holders = redis.call('HGETALL', key .. ':k')
  for i = 1, #holders, 2 do
    redis.call('DEL', key .. ':q:' .. holders[i])
    if not kept[holders[i + 1]] then redis.call('HDEL', key .. ':k', holders[i]) end
  end
  state.parked = 0
end

-- Returns whether a delivery was acknowledged and waits for an earlier one of its key. The first of its key doesn't wait: it is
-- being deleted from the database or, if its lease has ended meanwhile, the process that should have done so has died.
local function is_acknowledged(key, id)
  if redis.call('HGET', key .. ':d', id) ~= ACKNOWLEDGED then return false end
  local first = redis.call('LINDEX', key .. ':u:' .. redis.call('HGET', key .. ':o', id), 0)
  return first and first ~= id
end

-- Moves leases that ended without an ack to the retry set, with the countdown of the subscription's retry policy. Both of
-- its bounds are 0 for a subscription without one: the messages are due at once.
local function lapse(key, state, now, minimum, maximum, dice)
  local over = redis.call('ZRANGEBYSCORE', key .. ':l', '-inf', now, 'LIMIT', 0, CHUNK)
  if #over == 0 then return end
  local ended = {}
  for _, id in ipairs(over) do
    if state.ordered == 1 and is_acknowledged(key, id) then
      redis.call('ZADD', key .. ':l', now + ACKNOWLEDGED_MS, id)
    else
      ended[#ended + 1] = id
    end
  end
  if #ended == 0 then return end
  local counts = redis.call('HMGET', key .. ':a', unpack(ended))
  local free = redis.call('HMGET', key .. ':e', unpack(ended))
  for i, id in ipairs(ended) do
    local attempts = (tonumber(counts[i]) or 1) - (tonumber(free[i]) or 0)
    -- The golden ratio spreads the messages of one batch evenly.
    local delay = rules_countdown(attempts, minimum, maximum, (dice + i * 0.6180339887) % 1)
    redis.call('ZADD', key .. ':z', now + delay, id)
  end
  -- A nack gives its lease the end 0 (extend.lua): that deadline did not expire.
  local expired = redis.call('ZCOUNT', key .. ':l', '(0', now)
  redis.call('ZREM', key .. ':l', unpack(ended))
  expired = expired - redis.call('ZCOUNT', key .. ':l', '(0', now)
  if expired > 0 then
    local subscription = string.match(key, '^' .. PREFIX .. '(%d+):')
    redis.call('HINCRBY', PREFIX .. 'counters', 'subscription_expired_ack_deadlines_count|' .. subscription .. '|pull', expired)
  end
  set_places(key, ended, RETRYING)
  if state.ordered == 0 then return end
  for _, id in ipairs(ended) do hold_back(key, state, id) end
end

-- Returns whether no lane is due between now and that time, so that no worker expects to wake then. Overdue lanes do not
-- count: the worker that was to wake them is late or gone.
local function is_nearest(now, at)
  return redis.call('ZCOUNT', PREFIX .. 'wake', '(' .. now, at) == 0
end

-- Schedules the next pump of the lane, or none if only an event can change the lane. `is_cut` is true if the window has room
-- for more messages than the queue.
local function schedule(lane, key, region, state, now, is_cut)
  local at = nil
  if is_cut then
    at = now + SLICE_MS
  elseif state.mode == PUSH then
    local waiting = redis.call('ZRANGE', key .. ':z', 0, 0, 'WITHSCORES')
    if now < state.resume_ms then
      if waiting[1] or redis.call('EXISTS', key .. ':b') == 1 or state.spilled == 1 then at = state.resume_ms end
    elseif state.outstanding < rules_window(state) and waiting[1] then
      at = tonumber(waiting[2])
    end
    local bucket_at = rules_bucket_wait(state, now)
    if bucket_at and (waiting[1] or redis.call('EXISTS', key .. ':b') == 1) then at = math.max(at or 0, bucket_at) end
  end
  local leased = state.mode == PUSH and redis.call('ZRANGE', key .. ':l', 0, 0, 'WITHSCORES') or {}
  if leased[1] then at = math.min(at or tonumber(leased[2]), tonumber(leased[2])) end
  -- The expected page may get lost.
  if state.paging_until_ms > now then at = math.min(at or state.paging_until_ms + 1, state.paging_until_ms + 1) end
  if at then
    at = math.max(at, now + 1)
    -- If the lane was cut, the full queue keeps a worker awake anyway.
    if not is_cut and not tells_wake and at < now + SLEEP_MS and is_nearest(now, at) then ring(region) end
    redis.call('ZADD', PREFIX .. 'wake', at, lane)
  else
    redis.call('ZREM', PREFIX .. 'wake', lane)
  end
end

-- Returns whether the backlog in Redis is nearly empty and the database has more.
local function runs_low(key, state, now, low)
  return state.spilled == 1 and state.mode ~= IDLE and state.paging_until_ms <= now
    and redis.call('LLEN', key .. ':b') + state.parked < low
end

-- Requests the next page if the backlog in Redis is nearly empty. Returns whether it did.
local function want_page(lane, key, state, now, low)
  if not runs_low(key, state, now, low) then return false end
  redis.call('SADD', PREFIX .. 'page', lane)
  return true
end

local function ring_pullers(lane)
  local bell = PREFIX .. 'pull:' .. string.match(lane, '^(%d+):')
  redis.call('LPUSH', bell, '1')
  redis.call('LTRIM', bell, 0, 0)
  redis.call('EXPIRE', bell, 60)
end

-- Returns whether nothing of a lane can go out before a token comes back. The return of a token pumps the lane.
local function waits_for_token(state, now)
  return now >= state.resume_ms and state.rate <= 0 and state.gap_ms <= 0
    and state.outstanding >= rules_window(state)
end

-- Returns how many of `free` deliveries may go out now, after `returned` tokens have come back.
local function slice(state, now, queue, free, returned)
  local grown = math.min(state.credit + GROWTH_PER_MS * math.max(now - state.pumped_ms, 0), GROWTH_BURST)
  state.credit = math.min(math.max(state.credit, grown) + returned, SLOW_START_LIMIT)
  state.pumped_ms = now
  local room = math.max(QUEUE_DEPTH - redis.call('LLEN', queue), SHORT_SLICE)
  return math.min(free, math.max(state.credit, 1), room)
end

-- Puts deliveries into the queue, each with a token. Returns how many.
local function send(key, queue, ids, messages)
  local first = 1
  each_chunk(ids, function(part)
    set_places(key, part, OUTSTANDING)
    redis.call('LPUSH', queue, unpack(messages, first, first + #part - 1))
    first = first + #part
  end)
  return #ids
end

-- Fills the queue with as many deliveries as the window has room for. Returns how many, and whether a page is wanted.
local function pump(lane, state, now, limit, returned)
  local key = PREFIX .. lane
  local region = string.match(lane, ':(.+)$')
  local queue = 'deliveries.' .. region
  local moved, is_cut = 0, false
  if state.mode == PUSH then lapse(key, state, now, 0, 0, 0) end
  if state.mode == PUSH and now >= state.resume_ms then
    local free = rules_free(state, now)
    if free > 0 then
      local now_free = slice(state, now, queue, free, returned or 0)
      is_cut = now_free < free
      free = now_free
      local ids, messages = due_retries(key, free, now)
      moved = send(key, queue, ids, messages)
      -- A lane with too many retries takes nothing new from the backlog, so that its memory stays bounded.
      if moved < free and redis.call('ZCARD', key .. ':z') < limit then
        ids, messages = next_ready(key, state, free - moved)
        moved = moved + send(key, queue, ids, messages)
      end
      is_cut = is_cut and moved == free
      -- A lane with nothing more to send keeps no more than a burst.
      state.credit = math.max(moved == free and state.credit - moved or math.min(state.credit - moved, GROWTH_BURST), 0)
    end
    if moved > 0 then
      state.outstanding = state.outstanding + moved
      rules_spend(state, now, moved)
      if redis.call('LLEN', queue) == moved then ring(region) end
    end
  end
  schedule(lane, key, region, state, now, is_cut)
  local page = want_page(lane, key, state, now, limit / 2)
  if page then ring(region) end
  return moved, page
end
