-- Shared by every verb: each verb's script begins with the names of codes.py, rules.lua, this file, pump.lua and record.lua.
--
-- A lane is one (subscription, region); its keys, with P = "ph:<subscription>:<region>":
--   P:s  hash    the lane's state, described below; codes.py has the short name of each field
--   P:d  hash    delivery -> its place: WAITING in the backlog, OUTSTANDING with a token, RETRYING in the retry set, LEASED
--                to a puller, PARKED behind an earlier message of its ordering key, or ACKNOWLEDGED by a puller while an
--                earlier message of its key is still leased (codes.py has the letters)
--   P:b  list    the head of the backlog: complete Celery messages in publish order, oldest on the left. The rest is in the
--                database
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
--   P:v  hash    ordering key -> the puller that holds those leases: no other puller gets messages of the key meanwhile.
--                A stream's name begins with "<client>/", if it has a client id; "<client>/" alone stands for its other streams
-- A delivery is named by its message id. All lanes share:
--   ph:wake                zset  lane -> when it next needs a pump (ms)
--   ph:page                set   lanes that need the next page of their backlog from the database
--   ph:bell:<region>       list  holds an entry while a sleeping worker should look at the queue
--   ph:bytes               about how many bytes the deliveries of all lanes take in Redis: the sum of their `held_bytes`
--   ph:counters            hash  the counters of /metrics; see deliveries/counters
--   ph:pull:<subscription> list  holds one entry while a waiting puller should look at the lanes
--   deliveries.<region>    list  kombu's queue; pushed on the left, taken on the right
--
-- The fields of the state besides those of rules.lua:
--   mode             0 = paused or detached, 1 = push, 2 = pull
--   generation       random text that the lane got when it was made; see below
--   outstanding      tokens held
--   spilled          1 if the database has rows that are not in Redis, from the id `cursor` on
--   cursor           see spilled
--   spilled_from     the lowest id from which the lane was spilled since the last page was requested, or ''
--   read_to          rows up to this id may have been in Redis before
--   page_number      the number of the last page that was requested
--   paging_until_ms  the time until which a worker is expected to bring that page, or 0 if no page is on its way
--   credit           how many more deliveries may go out, as of the time pumped_ms
--   pumped_ms        see credit; in a pull lane, when a puller last asked for messages
--   ordered          1 if messages of an ordering key go out in order: one at a time to an endpoint, many to a puller
--   parked           how many deliveries wait for their ordering key
--   held             how many deliveries the lane had when it was counted last; held_bytes: about how many bytes they take
--   push_config      a number that changes with the subscription's push requests (push_config_digest in lanes.py); 0 if it
--                    has none, or is not known
--
-- A lane is made anew if Redis was wiped, if a seek has forgotten it, or if something arrives for a lane that was deleted. The
-- new lane reads the database from the start. What was made for the lane before it may still arrive. Therefore all that a lane
-- hands out carries the lane's generation, and a lane drops what comes back from another one:
--   a page                   the rows before it may not have been read yet
--   a result                 the delivery may have been sent again: its token and its ordering key belong to another worker
--   a lease, an ack id       it has ended: the delivery may have been leased again
--   a dead worker's batch    its messages are not put back
--   a lost token             it is not taken back: the audit has found it in another generation
-- Nothing is lost by that, because the database has what is still owed: acks leave it before they come here. Task messages
-- carry the generation for their results; those of versions without generations count in each. Offers and settings are made of
-- what the database has, and ph:wake, ph:page and the bells only make somebody look at a lane, so they suit each generation.
--
-- An ordered lane reads its backlog from the database only, in the order of ids, so that a publisher's lost offer cannot
-- swap two messages of a key. If any of it must be read again, everything that waits is read again.

-- A lane that nobody may ever take messages from keeps few deliveries in Redis: one of whose endpoint no ack is known, and one
-- whose pullers are away. All lanes together have one budget, BUDGET_BYTES. While they take more, each lane keeps few
-- deliveries, and large payloads stay in the database. What a lane takes is counted when deliveries enter it; those that leave
-- it count with its mean.

local PREFIX = 'ph:'
local IDLE, PUSH, PULL = 0, 1, 2
local CHUNK = 500
--- A page that did not arrive is requested again after this time.
local PAGING_MS = 4000
--- An acknowledged delivery that waits for an earlier delivery of its key is checked this often.
local ACKNOWLEDGED_MS = 60000
--- From this level of the push backoff on, an endpoint counts as down: its pauses are 0.4 s at least, and soon a minute.
local DOWN_LEVEL = FREE_LEVEL + 3
--- How many deliveries of a lane whose endpoint is down wait in Redis, and how long the text of each may be at most.
local HANDFUL, LEAN_TEXT = 16, 2000
--- While Redis is over its budget, or nobody is known to take the lane's messages, a lane keeps so many times its push window,
--- but a handful at least.
local WINDOWS = 8
--- So long after its last request a puller counts as away. Streams ask every few seconds.
local PULLER_AWAY_MS = 60000
--- What a delivery takes in Redis besides its message, and the bytes of a message whose size is not known.
local DELIVERY_BYTES, USUAL_BYTES = 150, 1000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Sets the fields that a state of an older version may lack and that rules.lua does not own.
local function add_pump_fields(state)
  state.credit, state.pumped_ms, state.ordered, state.parked, state.push_config = 0, 0, 0, 0, 0
  state.spilled_from, state.read_to, state.generation, state.held, state.held_bytes = '', '0', '', 0, 0
end

-- Returns the lane's generation, or '' for a lane that Redis does not have.
local function generation_of(key) return redis.call('HGET', key .. ':s', STATE_CODES.generation) or '' end

-- Returns whether something that was made for this generation still suits the lane. What older versions made has none: ''.
local function is_of_generation(key, generation) return generation == '' or generation == generation_of(key) end

-- Returns the lane's state, or nil for a lane that Redis does not have (new, or wiped). The fields that were read are in the
-- metatable, and fields that are assigned later are in the table itself: save_state writes only the latter.
local function load_state(key)
  local values = redis.call('HGETALL', key .. ':s')
  local loaded, count = {}, 0
  for i = 1, #values, 2 do
    local name = STATE_NAMES[values[i]]
    if name then
      loaded[name] = TEXT_FIELDS[name] and values[i + 1] or tonumber(values[i + 1])
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

-- Counts deliveries that have entered the lane, and bytes that it takes more or less.
local function add_held(state, count, bytes)
  local total = math.max(math.floor(state.held_bytes + bytes), 0)
  redis.call('INCRBY', PREFIX .. 'bytes', string.format('%.0f', total - state.held_bytes))
  state.held, state.held_bytes = state.held + count, total
end

-- Returns how many bytes a delivery of the lane takes on the average.
local function mean_bytes(state) return state.held > 0 and state.held_bytes / state.held or USUAL_BYTES end

-- Counts the deliveries that have left the lane since it was counted last.
local function count_held(key, state)
  local more = redis.call('HLEN', key .. ':d') - state.held
  if more ~= 0 then add_held(state, more, more * mean_bytes(state)) end
end

local function save_state(key, state)
  count_held(key, state)
  local fields = {}
  for name, value in pairs(state) do
    fields[#fields + 1] = STATE_CODES[name]
    fields[#fields + 1] = type(value) == 'number' and string.format('%.17g', value) or value
  end
  if #fields > 0 then redis.call('HSET', key .. ':s', unpack(fields)) end
end

local function new_state(mode, spilled, generation)
  local state = rules_new()
  state.mode, state.outstanding, state.cursor, state.page_number, state.paging_until_ms = mode, 0, '0', 0, 0
  state.spilled = spilled and 1 or 0
  add_pump_fields(state)
  state.generation = generation
  return state
end

-- Ids are decimal text without leading zeros, beyond what a double holds exactly.
local function id_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- Notes deliveries that Redis has or had: if their rows are read again, they may be settled by the time the page arrives.
local function note_known(state, ids)
  for _, id in ipairs(ids) do
    if id_less(state.read_to, id) then state.read_to = id end
  end
end

-- Records that the rows from id `first` on must be read from the database. An ordered lane never skips rows: it goes on
-- reading at its cursor, so that a row whose offer got lost is read too.
local function spill(key, state, first)
  if (state.spilled == 0 and state.ordered == 0) or id_less(first, state.cursor) then
    state.cursor = first
    -- Offers don't come in the order of ids, so later rows may be here already.
    if state.ordered == 0 then note_known(state, redis.call('HKEYS', key .. ':d')) end
  end
  state.spilled = 1
  if state.spilled_from == '' or id_less(first, state.spilled_from) then state.spilled_from = first end
end

local function is_in_backoff(state) return state.mode == PUSH and state.backoff_level > FREE_LEVEL end

local function is_down(state) return state.mode == PUSH and state.backoff_level >= DOWN_LEVEL end

local over_budget
local function is_over_budget()
  if over_budget == nil then over_budget = tonumber(redis.call('GET', PREFIX .. 'bytes') or 0) > BUDGET_BYTES end
  return over_budget
end

-- Returns whether larger payloads of the lane stay in the database.
local function is_lean(state) return is_down(state) or is_over_budget() end

-- Returns whether the lane's endpoint is known to ack, given two fields of its state, or a puller asks for its messages.
local function has_acked(results_seen, ack_ratio) return results_seen > 0 and ack_ratio > 0 end
local function is_taken_from(state, now)
  if state.mode == PULL then return now - state.pumped_ms < PULLER_AWAY_MS end
  return has_acked(state.results_seen, state.ack_ratio)
end

-- Returns how many deliveries of the lane may wait in Redis, where `limit` is the most for any lane.
local function limit_of(key, state, limit, now)
  if is_down(state) then return math.min(limit, HANDFUL) end
  if not is_over_budget() and is_taken_from(state, now) then return limit end
  local used = state.mode == PUSH and rules_window(state) or redis.call('ZCARD', key .. ':l')
  return math.min(limit, math.max(WINDOWS * used, HANDFUL))
end

-- Notes that a worker brings the next page. Returns the id to read from, the page's number, the id up to which rows may have
-- been in Redis before, the generation, how many rows are wanted, and whether larger payloads stay in the database. A page that
-- is late and its repetition have the same number: the first to arrive counts, and the other is dropped, because its rows may
-- have been settled meanwhile and would go out behind later ones of their key.
local function request_page(key, state, now, limit)
  if state.paging_until_ms == 0 then
    state.page_number = state.page_number + 1
    state.spilled_from = ''
  end
  state.paging_until_ms = now + PAGING_MS
  local rows = math.max(math.floor(limit_of(key, state, limit, now) / 2), 1)
  return state.cursor, tostring(state.page_number), state.read_to, state.generation, rows, is_lean(state) and 1 or 0
end

-- Returns whether the page with this number has not arrived yet, and the lane has not begun to read from elsewhere meanwhile.
local function expects_page(state, number) return state.paging_until_ms > 0 and number == state.page_number end

-- Moves the cursor behind a page that has arrived. A row of a spill since the request may be missing in the page, so the lane
-- reads on from the first such row. An ordered lane reads the page again, as it never skips a row whose offer got lost.
local function page_arrived(state, next_id, is_last)
  if id_less(state.read_to, next_id) then state.read_to = next_id end
  state.paging_until_ms = 0
  if state.spilled_from == '' then
    state.cursor = next_id
    if is_last then state.spilled = 0 end
  elseif state.ordered == 0 then
    state.cursor = id_less(state.spilled_from, next_id) and state.spilled_from or next_id
  end
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
-- message of ids[i]. In an ordered lane, `orderings` has the digest of each ordering key, or ''. Returns how many it has
-- appended, and how many bytes they take.
local function append(key, ids, count, message_of, orderings)
  local appended, bytes = 0, 0
  for first = 1, count, CHUNK do
    local last = math.min(first + CHUNK - 1, count)
    local places = redis.call('HMGET', key .. ':d', unpack(ids, first, last))
    local fresh, messages, keys = {}, {}, {}
    for i = first, last do
      if not places[i - first + 1] then
        fresh[#fresh + 1] = ids[i]
        local message = message_of(i)
        messages[#messages + 1] = message
        bytes = bytes + #message + DELIVERY_BYTES
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
      appended = appended + #fresh
    end
  end
  return appended, bytes
end

local function message_id(message) return string.match(message, '^{"headers":{"id":"(%d+)') end

-- Returns the message id, the subscription, the region and the generation of a task message; all nil for another message,
-- and the generation '' for a message of an older version.
local function task_of(message)
  local id, subscription, region, after = string.match(message, '^{"headers":{"id":"(%d+)%.(%d+)%.([^".]+)"()')
  return id, subscription, region, id and string.match(message, '^,"lang":"py","task":"[^"]*","lane":"([^".]+)', after) or ''
end

-- Takes up to `free` due deliveries out of the retry set. Returns their ids and messages.
local function due_retries(key, free, now)
  local due = redis.call('ZRANGEBYSCORE', key .. ':z', '-inf', now, 'LIMIT', 0, math.min(free, CHUNK))
  if #due == 0 then return due, due end
  local messages = redis.call('HMGET', key .. ':m', unpack(due))
  redis.call('ZREM', key .. ':z', unpack(due))
  redis.call('HDEL', key .. ':m', unpack(due))
  return due, messages
end

-- Makes all retries due.
local function hurry_retries(key, now)
  each_chunk(redis.call('ZRANGEBYSCORE', key .. ':z', '(' .. now, '+inf'), function(part)
    local scores = {}
    for i, id in ipairs(part) do scores[2 * i - 1], scores[2 * i] = now, id end
    redis.call('ZADD', key .. ':z', unpack(scores))
  end)
end

-- Makes the first parked delivery of a key the next one, which is due at once. For an endpoint it is no retry: those have few
-- tokens while a lane has bad messages.
local function next_of_key(key, state, ordering)
  local following = redis.call('LPOP', key .. ':q:' .. ordering)
  if not following then
    redis.call('HDEL', key .. ':k', ordering)
    return
  end
  state.parked = state.parked - 1
  redis.call('HSET', key .. ':k', ordering, following)
  redis.call('HSET', key .. ':d', following, state.mode == PUSH and WAITING or RETRYING)
  if state.mode ~= PUSH then return redis.call('ZADD', key .. ':z', 0, following) end
  redis.call('LPUSH', key .. ':b', redis.call('HGET', key .. ':m', following))
  redis.call('HDEL', key .. ':m', following)
end

-- Returns the client of a stream, or nil: a stream that has closed leaves its ordering keys to the client's other streams.
local function client_of(puller) return string.match(puller, '^.+/') end

-- Lets a puller lease the next delivery of a key. Returns false if another puller holds leases of the key.
local function lend_key(key, ordering, id, puller)
  local owner = redis.call('HGET', key .. ':v', ordering)
  if owner and owner ~= puller and owner ~= client_of(puller) then return false end
  if owner ~= puller then redis.call('HSET', key .. ':v', ordering, puller) end
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
  local had_leases = redis.call('EXISTS', key .. ':a') == 1
  each_chunk(ids, function(part)
    if state.ordered == 1 then
      local orderings = redis.call('HMGET', key .. ':o', unpack(part))
      for i, id in ipairs(part) do
        if orderings[i] then free_key(key, state, id, orderings[i]) end
      end
      redis.call('HDEL', key .. ':o', unpack(part))
      -- One of them may have become due when the delivery before it left.
      redis.call('ZREM', key .. ':z', unpack(part))
    end
    redis.call('HDEL', key .. ':d', unpack(part))
    if had_leases then
      redis.call('HDEL', key .. ':a', unpack(part))
      redis.call('HDEL', key .. ':e', unpack(part))
    end
  end)
  each_chunk(kept, function(part) redis.call('HDEL', key .. ':m', unpack(part)) end)
end

-- Forgets all waiting deliveries, which the database has too, and returns the lowest of their ids, or nil. Deliveries with a
-- token or a lease stay, and so do those that are being retried if `keeps_retries`. A page on its way to the lane is dropped,
-- because the rows before it must be read again first.
local function clear_waiting(key, state, keeps_retries)
  local kept, gone, lowest = {}, {}, nil
  local all = redis.call('HGETALL', key .. ':d')
  for i = 1, #all, 2 do
    local id, where = all[i], all[i + 1]
    if id_less(state.read_to, id) then state.read_to = id end
    if where == OUTSTANDING or where == LEASED or where == ACKNOWLEDGED or keeps_retries and where == RETRYING then
      kept[id] = true
    else
      gone[#gone + 1] = id
      if not lowest or id_less(id, lowest) then lowest = id end
    end
  end
  each_chunk(gone, function(part)
    redis.call('HDEL', key .. ':d', unpack(part))
    redis.call('HDEL', key .. ':m', unpack(part))
    redis.call('HDEL', key .. ':a', unpack(part))
    redis.call('HDEL', key .. ':e', unpack(part))
    redis.call('HDEL', key .. ':o', unpack(part))
  end)
  redis.call('DEL', key .. ':b')
  if not keeps_retries then redis.call('DEL', key .. ':z') end
  local holders = redis.call('HGETALL', key .. ':k')
  for i = 1, #holders, 2 do
    redis.call('DEL', key .. ':q:' .. holders[i])
    if not kept[holders[i + 1]] then redis.call('HDEL', key .. ':k', holders[i]) end
  end
  state.parked = 0
  state.paging_until_ms = 0
  return lowest
end

-- Leaves what waits to the database, if it is more than a handful. What is being retried keeps its countdown.
local function keep_handful(key, state)
  local waiting = redis.call('LLEN', key .. ':b') + state.parked
  if waiting == 0 or waiting <= HANDFUL and state.held_bytes <= HANDFUL * LEAN_TEXT then return end
  local mean = mean_bytes(state)
  local lowest = clear_waiting(key, state, true)
  if lowest then spill(key, state, lowest) end
  -- The messages that stay may be much smaller than those that leave.
  local kept, bytes = redis.call('HKEYS', key .. ':d'), 0
  for _, id in ipairs(kept) do
    local length = redis.call('HSTRLEN', key .. ':m', id)
    bytes = bytes + (length > 0 and length + DELIVERY_BYTES or mean)
  end
  add_held(state, #kept - state.held, bytes - state.held_bytes)
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
