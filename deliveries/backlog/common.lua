-- Shared by every verb: what a lane is, its state, and its pages. The verbs' library begins with the names of codes.py, rules.lua,
-- this file, places.lua, pump.lua, record.lua and register.lua.
--
-- A lane is one (subscription, region); its keys, with P = "ph:<subscription>:<region>":
--   P:s  hash    the lane's state, described below; codes.py and flow.py have the short name of each field
--   P:d  hash    delivery -> its place: WAITING in the backlog, OUTSTANDING with a token, RETRYING in the retry set, LEASED
--                to a puller, PARKED behind an earlier message of its ordering key, or ACKNOWLEDGED by a puller while an
--                earlier message of its key is still leased (codes.py has the letters)
--   P:b  list    the head of the backlog: complete Celery messages in publish order, oldest on the left. The rest is in the
--                database
--   P:z  zset    retry set: delivery -> when it is due (ms)
--   P:l  zset    leases: delivery -> when the lease lapses (ms)
--   P:a  hash    delivery -> how often it was leased, which is part of its ack id
--   P:e  hash    delivery -> how many of its leases were taken back, which cost it no attempt
--   P:x  zset    "<delivery> <how often it was leased>" -> when the ack of this lease was accepted (ms), with exactly-once delivery
--   P:m  hash    delivery -> Celery message, for deliveries that are retrying, leased or parked
--   P:o  hash    delivery -> digest of its ordering key; ordered lanes only
--   P:k  hash    ordering key -> the delivery that is next among the waiting ones of the key. It holds a token while it is
--                pushed. "*" stands for the first parked delivery, which waits until another puller's leases end
--   P:t  hash    digest of an ordering key -> its last message that came, of those that came lately; see below
--   P:q:<key>  list  the deliveries parked behind the next one, in publish order
--   P:u:<key>  list  the key's deliveries that pullers have leased, in publish order; they come before P:k
--   P:w  hash    ordering key -> "<id> <id>": the first of its messages that the lane has left to the database though its pages
--                have had it, and the first left since the last request for such messages, or "". A later page leaves them out
--   P:y  set     those of these keys that have nothing in Redis any more: their messages are read next
--   P:v  hash    ordering key -> the puller that holds those leases: no other puller gets messages of the key meanwhile.
--                A stream's name begins with "<client>/", if it has a client id; "<client>/" alone stands for its other streams
-- A delivery is named by its message id. All lanes of a cell share:
--   ph:wake                zset  lane -> when it next needs a pump (ms)
--   ph:page                set   lanes that need the next page of their backlog from the database
--   ph:bell:<region>       list  holds an entry while a sleeping worker should look at the queue. Several cells share one, which
--                          the caller of a script rings (scripts.py)
--   ph:bytes               about how many bytes the deliveries of all lanes take in Redis: the sum of their `held_bytes`
--   ph:others              how many those of the other cells took at the last heartbeat of a worker; it expires
--   ph:counters            hash  the counters of /metrics; see deliveries/telemetry/sinks/counters.py
--   ph:pull:<subscription> list  holds one entry while a waiting puller should look at the lanes. The channel of this name gets the
--                          region of the lane at the same time
--   deliveries.<region>    list  kombu's queue; pushed on the left, taken on the right. Messages of lanes that are not prompt
--                          are in kombu's list of the lowest priority (low_of)
-- Here and in the other files "ph:" stands for the text with which all keys of a cell begin (records.py). A script touches the keys
-- of one cell only, and finds that text in its last key.
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
--   left             how many ordering keys P:w has
--   starved_ms       since when the lane has had nothing to send but what is parked, while the database has more; or 0
--   held             how many deliveries the lane had when it was counted last; held_bytes: about how many bytes they take
--   push_config      a number that changes with the subscription's push requests (push_config_digest in lanes.py); 0 if it
--                    has none, or is not known
--
-- A lane is made anew if Redis was wiped, if a seek has forgotten it, or if something arrives for a lane that was deleted. The
-- new lane reads the database from the start. What was made for the lane before it may still arrive. Therefore all that a lane
-- hands out carries the lane's generation, and a lane drops what comes back from another one:
--   a page                   the rows before it may not have been read yet
--   a result                 the delivery may have been sent again: its token and its ordering key belong to another worker.
--                            One that waits is forgotten, if the database does not owe it (late.py)
--   a lease, an ack id       it has ended: the delivery may have been leased again
--   a dead worker's batch    its messages are not put back
--   a lost token             it is not taken back: the audit has found it in another generation
-- Nothing is lost by that, because the database has what is still owed: acks leave it before they come here. Task messages
-- carry the generation for their results; those of versions without generations count in each. Offers and settings are made of
-- what the database has, and ph:wake, ph:page and the bells only make somebody look at a lane, so they suit each generation.
--
-- A publisher's lost offer must not swap two messages of a key. So an offer says of each message which one was the last of its
-- key in the database before it, or that nobody knows, if one that the lane is owed was lost. An ordered lane takes the offer if it
-- has had those, as it has then had all of the key that was answered; otherwise it reads the database, in the order of ids. If any
-- of it must be read again, everything that waits is read again.

-- A lane whose messages don't leave fast keeps few deliveries in Redis: one of whose endpoint no ack within a second is known,
-- and one whose pullers are away. All lanes together have one budget, BUDGET_BYTES. While they take more, each lane keeps few
-- deliveries, and large payloads stay in the database. What a lane takes is counted when deliveries enter it; those that leave
-- it count with its mean.

--- The text with which all keys of the cell begin, and that with which its queues do.
local PREFIX, QUEUES
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
--- While Redis is over its budget, or its messages don't leave fast, a lane keeps so many times its push window, but a handful at
--- least.
local WINDOWS = 8
--- How many ordering keys a lane knows the last message of, and how long after the last offer. The database forgets most messages
--- sooner once they are settled, and a key without messages needs none.
local MOST_LAST, LAST_SECONDS = 10000, 90
--- A lane that starves for so long leaves what is parked to the database: other keys are behind it there. At an endpoint that
--- answers in time, what is parked goes on sooner.
local STARVED_MS = 1000
--- How many ordering keys are read at once of those that have nothing in Redis any more.
local KEYS_AT_ONCE = 16
--- So many times as many messages as may wait in Redis may be leased, and so many others may wait for a retry in a pull lane.
local MOST_LEASED = 4
--- What a delivery takes in Redis besides its message, and the bytes of a message whose size is not known.
local DELIVERY_BYTES, USUAL_BYTES = 150, 1000

-- Returns the name of the lane whose keys begin with this text.
local function lane_of(key) return string.sub(key, #PREFIX + 1) end

-- Claims the cell for this server of a Redis Cluster, before anything else is done in it. ph:primary has the id of the shard that
-- wrote the cell, and the run id of its server. Another server of the shard was its replica, or has restarted, and may lack the
-- last writes, as in claim.lua: what PushHub has in the cell is deleted, as if Redis had been wiped. From another shard, the cell has
-- moved here with all of its keys. While its slot moves, a missing key is an error: nothing has been done yet, and the
-- caller tries again. A Redis before 7.2 does not tell its shard; there, a cell that has moved is deleted, too.
local function claim_cell()
  redis.call('EXISTS', PREFIX .. 'never')
  local owner = redis.call('GET', PREFIX .. 'primary')
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  if owner and string.match(owner, '%w+$') == run then return end
  local own = redis.pcall('CLUSTER', 'MYSHARDID')
  own = type(own) == 'string' and own or ''
  local shard = owner and string.match(owner, '^(%w+) ')
  if not shard or shard == own then
    local slot = redis.call('CLUSTER', 'KEYSLOT', PREFIX)
    local count = redis.call('CLUSTER', 'COUNTKEYSINSLOT', slot)
    for _, key in ipairs(redis.call('CLUSTER', 'GETKEYSINSLOT', slot, count)) do
      if string.sub(key, 1, #PREFIX) == PREFIX then redis.call('UNLINK', key) end
    end
  end
  redis.call('SET', PREFIX .. 'primary', own .. ' ' .. run)
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Sets the fields that a state of an older version may lack and that rules.lua does not own.
local function add_pump_fields(state)
  state.credit, state.pumped_ms, state.ordered, state.parked, state.push_config = 0, 0, 0, 0, 0
  state.spilled_from, state.read_to, state.generation, state.held, state.held_bytes = '', '0', '', 0, 0
  state.left, state.starved_ms = 0, 0
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
    fields[#fields + 1] = value  -- Redis writes a number so that it is read as the same one
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
    -- A page on its way begins behind these rows. An ordered lane drops it: it may bring later messages of their keys.
    if state.ordered == 1 then state.paging_until_ms = 0 end
    state.cursor = first
    -- Offers don't come in the order of ids, so later rows may be here already.
    if state.ordered == 0 then note_known(state, redis.call('HKEYS', key .. ':d')) end
  end
  state.spilled = 1
  if state.spilled_from == '' or id_less(first, state.spilled_from) then state.spilled_from = first end
end

local function is_in_backoff(state) return state.mode == PUSH and state.backoff_level > FREE_LEVEL end

-- Returns whether a lane in backoff has a retry that may go out when its pause ends.
local function has_due_retry(key, state, now)
  local retry = redis.call('ZRANGE', key .. ':z', 0, 0, 'WITHSCORES')
  return retry[1] and tonumber(retry[2]) <= math.max(now, state.resume_ms)
end

local function is_down(state) return state.mode == PUSH and state.backoff_level >= DOWN_LEVEL end

local over_budget
local function is_over_budget()
  if over_budget == nil then
    local most = BUDGET_BYTES
    if CELLS > 1 then
      local others = redis.call('GET', PREFIX .. 'others')
      most = others and most - others or most / CELLS
    end
    over_budget = tonumber(redis.call('GET', PREFIX .. 'bytes') or 0) > most
  end
  return over_budget
end

-- Returns whether larger payloads of the lane stay in the database.
local function is_lean(state) return is_down(state) or is_over_budget() end

-- Returns whether an endpoint is known to ack within a second, given three fields of its lane's state.
local function acks_soon(results_seen, ack_ratio, latency_ms)
  return results_seen > 0 and ack_ratio > 0 and latency_ms < LATENCY_BELOW_MS
end

-- Returns whether the lane may need many messages at once. Behind an endpoint that takes seconds, a few windows last until the
-- next page is there. All of them may be of one ordering key, so an ordered lane needs more.
local function needs_many(state, now)
  if state.mode == PULL then return now - state.pumped_ms < PULLER_AWAY_MS end
  if state.ordered == 1 then return state.results_seen > 0 and state.ack_ratio > 0 end
  return acks_soon(state.results_seen, state.ack_ratio, state.latency_ms)
end

-- A lane is prompt if its endpoint acks within a second. The messages of all others (slow, dead, or not tried yet) have the
-- lowest priority: a thousand such lanes would else take a worker's time from the prompt ones.
local function is_prompt(state)
  return acks_soon(state.results_seen, state.ack_ratio, state.latency_ms) and not is_in_backoff(state)
end

-- The list in which kombu keeps the messages of a queue that have the lowest priority.
local function low_of(queue) return queue .. '\006\0229' end

-- Returns how many deliveries of the lane may wait in Redis, where `limit` is the most for any lane.
local function limit_of(key, state, limit, now)
  if is_down(state) then return math.min(limit, HANDFUL) end
  if not is_over_budget() and needs_many(state, now) then return limit end
  local used = state.mode == PUSH and rules_window(state) or redis.call('ZCARD', key .. ':l')
  return math.min(limit, math.max(WINDOWS * used, HANDFUL))
end

-- Returns whether messages of ordering keys that were left to the database are to be read.
local function has_key_to_read(key, state) return state.left > 0 and redis.call('EXISTS', key .. ':y') == 1 end

-- Returns the first message of an ordering key that was left to the database, and the first since the last request; or nil.
local function left_of(key, ordering)
  local text = redis.call('HGET', key .. ':w', ordering)
  if text then return string.match(text, '^(%d+) (%d*)$') end
end

-- Notes that a message of an ordering key is left to the database, and so are the later ones of its key.
local function note_left(key, state, ordering, id)
  local first, since = left_of(key, ordering)
  if not first then
    state.left = state.left + 1
    first, since = id, id
  else
    if id_less(id, first) then first = id end
    if since == '' or id_less(id, since) then since = id end
  end
  redis.call('HSET', key .. ':w', ordering, first .. ' ' .. since)
end

-- Notes messages of keys that were left to the database. One whose commit took long may come before those: it is read with them, or
-- would be overtaken by them while it waits in Redis.
local function note_late(key, state, ids, orderings)
  for i, ordering in ipairs(state.left > 0 and orderings or {}) do
    if ordering ~= '' and left_of(key, ordering) then note_left(key, state, ordering, ids[i]) end
  end
end

-- Notes that a worker brings the next page. Returns the id to read from, the page's number, the id up to which rows may have
-- been in Redis before, the generation, how many rows are wanted, whether larger payloads stay in the database, whether the
-- lane is prompt, and whether it is ordered. A page that is late and its repetition have the same number: the first to arrive
-- counts, and the other is dropped, because its rows may have been settled meanwhile and would go out behind later ones of
-- their key. Then comes whether the page is a probe: while a lane in backoff has retries alone, which may be bad messages, one
-- that has not failed yet is read, wherever it is. Its row is read again when the cursor gets there. Last come whether the page
-- is of ordering keys, of which each may have that many rows, and these keys, or else those whose messages it leaves out:
-- "<key>:<first message>,...".
local function request_page(key, state, now, limit)
  local is_new = state.paging_until_ms == 0
  if is_new then state.page_number = state.page_number + 1 end
  state.paging_until_ms = now + PAGING_MS
  local rows = math.max(math.floor(limit_of(key, state, limit, now) / 2), 1)
  -- Pages of the lane and of keys take turns, until too many keys are left.
  local of_keys = has_key_to_read(key, state) and (state.spilled == 0 or state.left >= limit or state.page_number % 2 == 0)
  local keys, is_probe = {}, false
  if of_keys then
    local orderings = redis.call('SRANDMEMBER', key .. ':y', KEYS_AT_ONCE)
    rows = math.max(math.floor((rows - state.parked) / #orderings), 1)
    for i, ordering in ipairs(orderings) do
      local first, since = left_of(key, ordering)
      if is_new and since ~= '' then redis.call('HSET', key .. ':w', ordering, first .. ' ') end
      keys[i] = ordering .. ':' .. first
    end
  else
    if is_new then state.spilled_from = '' end
    is_probe = state.ordered == 0 and is_in_backoff(state) and has_due_retry(key, state, now)
    if is_probe then rows = 1 end
    local left = state.left > 0 and redis.call('HGETALL', key .. ':w') or {}
    for i = 1, #left, 2 do keys[#keys + 1] = left[i] .. ':' .. string.match(left[i + 1], '^%d+') end
  end
  return state.cursor, tostring(state.page_number), state.read_to, state.generation, rows, is_lean(state) and 1 or 0,
    is_prompt(state) and 1 or 0, state.ordered, is_probe and 1 or 0, of_keys and 1 or 0, table.concat(keys, ',')
end

-- Returns whether the page with this number has not arrived yet, and the lane has not begun to read from elsewhere meanwhile.
local function expects_page(state, number) return state.paging_until_ms > 0 and number == state.page_number end

-- Moves the cursor behind a page that has arrived. A row of a spill since the request may be missing in the page, so the lane
-- reads on from the first such row. An ordered lane reads the page again, as it never skips a row whose offer got lost.
local function page_arrived(state, next_id, is_last)
  if id_less(state.read_to, next_id) then state.read_to = next_id end
  state.paging_until_ms = 0
  local may_lack = state.spilled_from ~= '' and id_less(state.spilled_from, next_id)
  if not may_lack then
    state.cursor = next_id
  elseif state.ordered == 0 then
    state.cursor = state.spilled_from
  end
  if is_last and state.spilled_from == '' then
    state.spilled = 0
    -- Pages have had the rows up to here: an offer of one that comes now is late (offer.lua).
    if state.ordered == 1 and id_less(next_id, state.read_to) then state.cursor = state.read_to end
  end
end

--- The regions whose bells the caller is to ring.
local rung
local function rung_regions()
  local regions = {}
  for region in pairs(rung) do regions[#regions + 1] = region end
  return regions
end

local function ring(region)
  if CELLS > 1 then
    rung[region] = true
    return
  end
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
