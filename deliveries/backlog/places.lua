-- Moves deliveries between the places of a lane, and lets the messages of an ordering key go in their order. common.lua, which
-- comes before this file, describes the places and the keys.

-- Writes the place of each of `ids` into the lane's hash of deliveries.
local function set_places(key, ids, place)
  local fields = {}
  for i, id in ipairs(ids) do
    fields[2 * i - 1] = id
    fields[2 * i] = place
  end
  redis.call('HSET', key .. ':d', unpack(fields))
end

-- Returns whether a delivery in this place is neither on its way to the endpoint nor with a puller.
local function is_waiting(place) return place == WAITING or place == RETRYING or place == PARKED end

-- Returns whether a task message is that of a retry: the headers, with the number of retries, come before the message's own text.
local function has_failed(message) return string.match(message, '"retries":(%d+)') ~= '0' end

-- Appends the first `count` of `ids` to the backlog, except those that the lane has already. `message_of(i)` returns the
-- message of ids[i]. In an ordered lane, `orderings` has the digest of each ordering key, or ''. With `due`, a message that has
-- failed before goes into the retry set and is due at that time. Returns how many it has appended, and how many bytes they take.
local function append(key, ids, count, message_of, orderings, due)
  local appended, bytes = 0, 0
  for first = 1, count, CHUNK do
    local last = math.min(first + CHUNK - 1, count)
    local places = redis.call('HMGET', key .. ':d', unpack(ids, first, last))
    local fresh, messages, keys, failed = {}, {}, {}, {}
    for i = first, last do
      if not places[i - first + 1] then
        local message = message_of(i)
        appended, bytes = appended + 1, bytes + #message + DELIVERY_BYTES
        if due and has_failed(message) then
          failed[#failed + 1] = ids[i]
          redis.call('HSET', key .. ':m', ids[i], message)
          redis.call('ZADD', key .. ':z', due, ids[i])
        else
          fresh[#fresh + 1] = ids[i]
          messages[#messages + 1] = message
        end
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
    if #failed > 0 then set_places(key, failed, RETRYING) end
  end
  return appended, bytes
end

-- Notes the first `count` of `ids` as the last ones that have come of their ordering keys.
local function note_last(key, ids, orderings, count)
  local last = {}
  for i = 1, count do
    if orderings[i] ~= '' then last[orderings[i]] = ids[i] end
  end
  local fields = {}
  for ordering, id in pairs(last) do
    fields[#fields + 1] = ordering
    fields[#fields + 1] = id
  end
  if #fields == 0 then return end
  redis.call('HSET', key .. ':t', unpack(fields))
  redis.call('EXPIRE', key .. ':t', LAST_SECONDS)
  local surplus = redis.call('HLEN', key .. ':t') - MOST_LAST
  if surplus > 0 then redis.call('HDEL', key .. ':t', unpack(redis.call('HRANDFIELD', key .. ':t', surplus))) end
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

-- Makes the first parked delivery of a key the next one, which is due at once, though after the retries that were due at the last
-- pull. For an endpoint it is no retry: those have few tokens while a lane has bad messages.
local function next_of_key(key, state, ordering)
  local following = redis.call('LPOP', key .. ':q:' .. ordering)
  if not following then
    redis.call('HDEL', key .. ':k', ordering)
    if state.left > 0 and redis.call('HEXISTS', key .. ':w', ordering) == 1 then redis.call('SADD', key .. ':y', ordering) end
    return
  end
  state.parked = state.parked - 1
  redis.call('HSET', key .. ':k', ordering, following)
  redis.call('HSET', key .. ':d', following, state.mode == PUSH and WAITING or RETRYING)
  if state.mode ~= PUSH then return redis.call('ZADD', key .. ':z', state.pumped_ms, following) end
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

-- Leaves a waiting delivery to the database if earlier ones of its ordering key were left there. Returns whether it did.
local function stays_behind(key, state, id, ordering, holder)
  local first = left_of(key, ordering)
  if not first or id_less(id, first) then return false end
  note_left(key, state, ordering, id)
  redis.call('HDEL', key .. ':d', id)
  redis.call('HDEL', key .. ':o', id)
  if not holder then redis.call('SADD', key .. ':y', ordering) end
  return true
end

-- Returns whether a delivery of an ordered lane may go out now, to `puller` or, without one, to the endpoint. Otherwise it is
-- parked or left to the database. `ordering` is the digest of its ordering key, or false.
local function take_key(key, state, id, ordering, message, puller)
  if not ordering then return true end
  local holder = redis.call('HGET', key .. ':k', ordering)
  local is_next = not holder or holder == id
  if state.left > 0 and holder ~= id and stays_behind(key, state, id, ordering, holder) then return false end
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
  local ids, ready, seen = {}, {}, {}
  while #ids < free do
    local count = math.min(free - #ids, CHUNK)
    local messages = redis.call('LPOP', key .. ':b', count)
    if not messages or #messages == 0 then break end
    local names = {}
    for i, message in ipairs(messages) do names[i] = message_id(message) end
    local where = redis.call('HMGET', key .. ':d', unpack(names))
    local orderings = state.ordered == 1 and redis.call('HMGET', key .. ':o', unpack(names))
    for i, message in ipairs(messages) do
      -- One that was read with its ordering key may be in the list twice.
      local is_first = where[i] == WAITING and not seen[names[i]]
      if orderings then seen[names[i]] = true end
      if is_first and (not orderings or take_key(key, state, names[i], orderings[i], message, puller)) then
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
  -- A page of the key that was read before may have it.
  local first = state.left > 0 and left_of(key, ordering)
  if first and not id_less(id, first) then note_left(key, state, ordering, id) end
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
  -- Counts are left of deliveries that were to be read again, and left the database before that.
  if had_leases and state.spilled == 0 and state.left == 0 and redis.call('EXISTS', key .. ':d') == 0 then
    redis.call('DEL', key .. ':a', key .. ':e')
  end
end

-- Forgets all waiting deliveries, which the database has too, and returns the lowest of their ids, or nil. Deliveries with a
-- token or a lease stay, and so do those that are being retried if `keeps_retries`. How often each was leased is in no database,
-- and stays. A page on its way to the lane is dropped, because the rows before it must be read again first.
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
    redis.call('HDEL', key .. ':o', unpack(part))
  end)
  redis.call('DEL', key .. ':b')
  if not keeps_retries then redis.call('DEL', key .. ':z') end
  local holders = redis.call('HGETALL', key .. ':k')
  for i = 1, #holders, 2 do
    redis.call('DEL', key .. ':q:' .. holders[i])
    if not kept[holders[i + 1]] then redis.call('HDEL', key .. ':k', holders[i]) end
  end
  for _, text in ipairs(state.left > 0 and redis.call('HVALS', key .. ':w') or {}) do
    local first = string.match(text, '^%d+')
    if not lowest or id_less(first, lowest) then lowest = first end
  end
  redis.call('DEL', key .. ':w', key .. ':y')
  state.parked, state.left = 0, 0
  state.paging_until_ms = 0
  return lowest
end

-- Leaves all that is parked to the database. When a key's turn comes, its messages are read from there.
local function leave_parked(key, state)
  local holders = redis.call('HGETALL', key .. ':k')
  for i = 1, #holders, 2 do
    local ordering, holder = holders[i], holders[i + 1]
    local parked = key .. ':q:' .. ordering
    -- "*" stands for the first parked delivery, which then has to stay.
    local from = holder == '*' and 1 or 0
    local ids = redis.call('LRANGE', parked, from, -1)
    -- One whose commit took long is parked behind later ones.
    local first = ids[1]
    for _, id in ipairs(ids) do
      if id_less(id, first) then first = id end
    end
    if first then note_left(key, state, ordering, first) end
    each_chunk(ids, function(part)
      for _, kind in ipairs({'d', 'm', 'o'}) do redis.call('HDEL', key .. ':' .. kind, unpack(part)) end
    end)
    -- An end before the start empties the list.
    redis.call('LTRIM', parked, 1 - from, 0)
    state.parked = state.parked - #ids
  end
end

-- Parks a message of an ordering key that was left to the database.
local function park_again(key, state, ordering, id, message)
  local place = redis.call('HGET', key .. ':d', id)
  if place and place ~= WAITING or redis.call('HGET', key .. ':k', ordering) == id then return end
  if not place then add_held(state, 1, #message + DELIVERY_BYTES) end
  redis.call('HSET', key .. ':d', id, PARKED)
  redis.call('HSET', key .. ':m', id, message)
  redis.call('HSET', key .. ':o', id, ordering)
  redis.call('RPUSH', key .. ':q:' .. ordering, id)
  state.parked = state.parked + 1
end

-- Takes the next messages of ordering keys that were left to the database. `nexts` has the keys, each with the first message that
-- the page does not have. What was left since the request may be missing in the page, so it is read again.
local function append_of_keys(key, state, nexts, ids, messages, orderings)
  local sinces = {}
  for ordering in string.gmatch(nexts, '(%x+):') do sinces[ordering] = select(2, left_of(key, ordering)) end
  for i, ordering in ipairs(orderings) do
    local since = sinces[ordering]
    if since and (since == '' or id_less(ids[i], since)) then park_again(key, state, ordering, ids[i], messages[i]) end
  end
  for ordering, next_id in string.gmatch(nexts, '(%x+):(%d*)') do
    local since = sinces[ordering]
    if since then
      if since ~= '' and (next_id == '' or id_less(since, next_id)) then next_id = since end
      if next_id ~= '' then
        redis.call('HSET', key .. ':w', ordering, next_id .. ' ')
      else
        redis.call('HDEL', key .. ':w', ordering)
        state.left = state.left - 1
      end
      redis.call('SREM', key .. ':y', ordering)
      if redis.call('HEXISTS', key .. ':k', ordering) == 0 then next_of_key(key, state, ordering) end
    end
  end
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
    local subscription = string.match(lane_of(key), '^%d+')
    redis.call('HINCRBY', PREFIX .. 'counters', 'subscription_expired_ack_deadlines_count|' .. subscription .. '|pull', expired)
  end
  set_places(key, ended, RETRYING)
  if state.ordered == 0 then return end
  for _, id in ipairs(ended) do hold_back(key, state, id) end
end
