-- The pump, shared by every verb: it moves deliveries of a lane into the queue, and schedules the lane's next pump.
-- common.lua, which comes before this file, describes the keys and the state.

--- The queue holds about this many messages at most. A lane with more to send fills the queue in slices, SLICE_MS apart,
--- so that messages of other lanes get in between. Every lane may always add SHORT_SLICE messages.
local QUEUE_DEPTH, SHORT_SLICE, SLICE_MS = 300, 16, 10
--- Returned tokens may be used again at once. Beyond that a lane's outstanding messages grow by GROWTH_PER_MS, after an
--- initial burst. A window of thousands that opened at once would take every worker's time from other lanes.
local GROWTH_PER_MS, GROWTH_BURST = 3, 150
--- A sleeping worker looks at the lanes at least this often (push/transport.py). If a lane is due sooner, a worker must be
--- rung.
local SLEEP_MS = 2000
--- Set by the verb whose reply tells its worker when the next lane is due: no ring is needed for that.
local tells_wake
--- Set by the verb whose caller takes messages from the queue right afterwards: no ring is needed for those.
local tells_queue

-- Returns whether no lane is due between now and that time, so that no worker expects to wake then. Overdue lanes do not
-- count: the worker that was to wake them is late or gone.
local function is_nearest(now, at)
  return redis.call('ZCOUNT', PREFIX .. 'wake', '(' .. now, at) == 0
end

-- Schedules the next pump of the lane, or none if only an event can change the lane. `is_cut` is true if the window has room
-- for more messages than the queue; `has_timed` is false if it is no push lane, or has neither retries nor leases.
local function schedule(lane, key, region, state, now, is_cut, has_timed)
  local at = nil
  if is_cut then
    at = now + SLICE_MS
  elseif state.mode == PUSH then
    local waiting = has_timed and redis.call('ZRANGE', key .. ':z', 0, 0, 'WITHSCORES') or {}
    if now < state.resume_ms then
      if waiting[1] or redis.call('EXISTS', key .. ':b') == 1 or state.spilled == 1 then at = state.resume_ms end
    elseif state.outstanding < rules_window(state) and waiting[1] and rules_retries(state, 1) > 0 then
      at = tonumber(waiting[2])
    end
    local bucket_at = rules_bucket_wait(state, now)
    if bucket_at and (waiting[1] or redis.call('EXISTS', key .. ':b') == 1) then at = math.max(at or 0, bucket_at) end
  end
  local leased = has_timed and redis.call('ZRANGE', key .. ':l', 0, 0, 'WITHSCORES') or {}
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

-- Returns whether the backlog in Redis is nearly empty and the database has more. An endpoint in backoff gets one message at
-- a time, so its lane reads no page as long as Redis has one that may go out when the pause ends: a retry, if it is its turn.
-- A lane with too many retries, or with too many ordering keys that were left to the database, reads no others. One that
-- starves leaves what is parked to the database.
local function runs_low(key, state, now, limit)
  if state.mode == IDLE or state.paging_until_ms > now then return false end
  if (state.spilled == 0 or state.left >= limit) and not has_key_to_read(key, state) then return false end
  local waiting = redis.call('LLEN', key .. ':b')
  if is_in_backoff(state) then
    if waiting > 0 or state.outstanding > 0 then return false end
    if has_due_retry(key, state, now) then
      if select(2, rules_retries(state, 1)) > 0 then return false end
      if state.ordered == 0 then return true end
    end
  end
  if redis.call('ZCARD', key .. ':z') >= (state.mode == PUSH and limit or MOST_LEASED * limit) then return false end
  local most = limit_of(key, state, limit, now) / 2
  local starves = waiting == 0 and state.parked >= most and (state.mode ~= PUSH or state.outstanding < rules_window(state))
  if not starves then
    if state.starved_ms > 0 then state.starved_ms = 0 end
    return waiting + state.parked < most
  end
  if state.starved_ms == 0 then state.starved_ms = now end
  local leaves_at = state.starved_ms + STARVED_MS
  if now < leaves_at then
    redis.call('ZADD', PREFIX .. 'wake', 'LT', leaves_at, lane_of(key))
    return false
  end
  leave_parked(key, state)
  return true
end

-- Requests the next page if the backlog in Redis is nearly empty. Returns whether it did.
local function want_page(lane, key, state, now, limit)
  if not runs_low(key, state, now, limit) then return false end
  redis.call('SADD', PREFIX .. 'page', lane)
  return true
end

-- Wakes pullers of a lane: one that waits by itself, and one in each process that listens for its streams.
local function ring_pullers(lane)
  local subscription, region = string.match(lane, '^(%d+):(.*)')
  local bell = PREFIX .. 'pull:' .. subscription
  redis.call('LPUSH', bell, '1')
  redis.call('LTRIM', bell, 0, 0)
  redis.call('EXPIRE', bell, 60)
  redis.call('PUBLISH', bell, region)
end

-- Lets what has become due of a lane go out: wakes its pullers, or has a worker pump it.
local function wake_lane(lane, state, now)
  if state.mode ~= PUSH then return ring_pullers(lane) end
  redis.call('ZADD', PREFIX .. 'wake', now, lane)
  ring(string.match(lane, ':(.+)$'))
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
  local queue = QUEUES .. region
  if not is_prompt(state) then queue = low_of(queue) end
  local moved, retried, is_cut = 0, 0, false
  -- Most lanes have neither retries nor leases, and to look at them again and again is a fifth of a small call's commands.
  local has_timed = state.mode == PUSH and redis.call('EXISTS', key .. ':z', key .. ':l') > 0
  if has_timed then lapse(key, state, now, 0, 0, 0) end
  if state.mode == PUSH and now >= state.resume_ms then
    local free = rules_free(state, now)
    if free > 0 then
      local now_free = slice(state, now, queue, free, returned or 0)
      is_cut = now_free < free
      free = now_free
      local most, first = rules_retries(state, free)
      if has_timed then retried = send(key, queue, due_retries(key, first, now)) end
      moved = retried
      -- A lane with too many retries takes nothing new from the backlog, so that its memory stays bounded.
      if moved < free and (not has_timed or redis.call('ZCARD', key .. ':z') < limit) then
        moved = moved + send(key, queue, next_ready(key, state, free - moved))
      end
      local more = math.min(most - retried, free - moved)
      if has_timed and more > 0 and retried == first then
        more = send(key, queue, due_retries(key, more, now))
        moved, retried = moved + more, retried + more
      end
      is_cut = is_cut and moved == free
      -- A lane with nothing more to send keeps no more than a burst.
      state.credit = math.max(moved == free and state.credit - moved or math.min(state.credit - moved, GROWTH_BURST), 0)
    end
    if moved > 0 then
      state.outstanding = state.outstanding + moved
      rules_spend(state, now, moved, retried)
      if not tells_queue and redis.call('LLEN', queue) == moved then ring(region) end
    end
  end
  schedule(lane, key, region, state, now, is_cut, has_timed)
  local page = want_page(lane, key, state, now, limit)
  if page then ring(region) end
  return moved, page
end
