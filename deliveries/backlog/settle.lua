-- settle(lane; limit, dice, takes, ids, verdicts, latencies, generations, leases, batches, [delay, message] ...)
--   -> {settled, page wanted, window, pause, spare, now, late, generation, is prompt}
--
-- Ends the leases of a batch: it forgets acked deliveries, puts nacked ones into the retry set, takes the tokens back,
-- updates the window and the push backoff, and pumps the lane. If the endpoint is found to be down, what waits is left to the
-- database, except for a handful. Settling twice is harmless, because only deliveries with a token count, and nacks and releases only
-- of what the worker still has. Results of another generation of the lane are dropped; `late` are the deliveries that such a
-- result has ended and that wait in this `generation`: a seek may have brought them back (late.py). A nack is due at `now` (ms
-- since 1970) and its delay. `window` and `pause` (ms) are the lane's new ones. `spare` is the number of free tokens if no delivery
-- waits and at least half of the window is free, and otherwise 0. For an ordered lane it is 1 at most, because the next delivery of
-- a key waits for the result of the one before, whatever the window; and -1 while any waits for that.
--   KEYS[1]  the lane
--   ARGV[1]  how many deliveries may wait in Redis
--   ARGV[2]  a number in [0, 1) for the jitter of the push backoff
--   ARGV[3]  1 if the caller takes messages from the lane's queue next (take.lua)
--   ARGV[4]  the deliveries, joined by commas, in order of their results
--   ARGV[5]  a letter for each (codes.py): ACK, NACK, RELEASE (unsent; back to the backlog), DROP (no longer owed), or
--            DEAD_LETTER (a nack that is no longer owed, as the message went to the dead-letter topic). A capital letter
--            means that the message has failed before.
--   ARGV[6]  the latency of each in ms, joined by commas
--   ARGV[7]  the generation that each result is of, joined by commas; one, if it is the same for all
--   ARGV[8]  the worker's lease at the time of the fetch, likewise, or "": if it has lapsed, messages of an ordered lane are
--            with another worker (beat.lua), and only what makes them no longer owed counts, once they wait again
--   ARGV[9]  where the worker's record has it, likewise (give_back in record.lua)
--   ARGV[10..] for each NACK and RELEASE in order: delay in ms, and the Celery message of the next attempt
-- Owns every key of the lane (common.lua), and what workers have given back (record.lua).

--- A lane in which ended deliveries wait is pumped when they are forgotten, or after this time.
local LATE_MS = 200
local key = KEYS[1]
local lane = lane_of(key)
local now = now_ms()
local state = load_state(key)
-- Redis was wiped: the database still has every delivery that was not acked, and the next offer or audit reads them.
if not state then return {0, 0, 0, 0, 0, now, {}, '', 0} end

local ids, latencies, generations, leases, has_lapsed = {}, {}, {}, {}, {['']=false}
for id in string.gmatch(ARGV[4], '[^,]+') do ids[#ids + 1] = id end
for value in string.gmatch(ARGV[6], '[^,]+') do latencies[#latencies + 1] = tonumber(value) end
for value in string.gmatch(ARGV[7] .. ',', '([^,]*),') do generations[#generations + 1] = value end
for value in string.gmatch(ARGV[8] .. ',', '([^,]*),') do
  leases[#leases + 1] = value
  if has_lapsed[value] == nil then
    has_lapsed[value] = state.ordered == 1 and not redis.call('ZSCORE', PREFIX .. 'leases', value)
  end
end
local batches = {}
for value in string.gmatch(ARGV[9] .. ',', '([^,]*),') do batches[#batches + 1] = value end
local letters = ARGV[5]
local dice = tonumber(ARGV[2])
tells_queue = ARGV[3] == '1'
local was_down = is_down(state)

-- By delivery, as two attempts at one may end together: its worker had been given up before the second.
local places = {}
each_chunk(ids, function(part)
  for i, place in ipairs(redis.call('HMGET', key .. ':d', unpack(part))) do places[part[i]] = place end
end)

-- Returns whether a message that failed may be left to the database: the lane in backoff has a handful of retries already, and
-- reads the message again from its cursor on.
local function is_surplus(id)
  return is_in_backoff(state) and state.ordered == 0 and state.spilled == 1 and not id_less(id, state.cursor)
    and redis.call('ZCARD', key .. ':z') >= HANDFUL
end

-- What each record is to have no more, and then what of that it had.
local returned = {}
for i, id in ipairs(ids) do
  local verdict, batch = string.lower(string.sub(letters, i, i)), batches[i] or batches[1]
  if verdict == NACK or verdict == RELEASE then
    returned[batch] = returned[batch] or {}
    table.insert(returned[batch], id)
  end
end
for batch, its in pairs(returned) do returned[batch] = give_back(batch, lane, its) end

local gone, gone_from, late, back, back_ids, settled, more_bytes = {}, {}, {}, {}, {}, 0, 0
local extra = 10
for i, id in ipairs(ids) do
  local letter = string.sub(letters, i, i)
  local verdict = string.lower(letter)
  local place, delay, message = places[id]
  if verdict == NACK or verdict == RELEASE then
    delay, message = tonumber(ARGV[extra]), ARGV[extra + 1]
    extra = extra + 2
    if not returned[batches[i] or batches[1]][id] then place = false end
  end
  local is_final = verdict == ACK or verdict == DROP or verdict == DEAD_LETTER
  local generation = generations[i] or generations[1]
  if generation ~= '' and generation ~= state.generation then
    if is_final and is_waiting(place) then late[#late + 1] = id end
    place = false
  end
  if place == OUTSTANDING and has_lapsed[leases[i] or leases[1]] then place = false end
  if place == OUTSTANDING then
    settled = settled + 1
    rules_return(state, letter ~= verdict)
    places[id] = false
    if verdict == ACK or verdict == NACK or verdict == DEAD_LETTER then
      rules_result(state, verdict == ACK, latencies[i], now, dice, letter ~= verdict)
    end
    if verdict == NACK and is_surplus(id) then
      gone[#gone + 1] = id
      gone_from[#gone] = false
      -- A page on its way left it out.
      spill(key, state, id)
    elseif verdict == NACK then
      places[id] = RETRYING
      redis.call('HSET', key .. ':d', id, RETRYING)
      redis.call('ZADD', key .. ':z', now + delay, id)
      redis.call('HSET', key .. ':m', id, message)
      more_bytes = more_bytes + #message + DELIVERY_BYTES - mean_bytes(state)
    elseif verdict == RELEASE then
      back[#back + 1] = message
      back_ids[#back_ids + 1] = id
    else
      gone[#gone + 1] = id
      gone_from[#gone] = false
    end
  elseif place and is_final then
    -- A late result of a delivery that already waits again: it is no longer owed.
    gone[#gone + 1] = id
    gone_from[#gone] = place
    places[id] = false
  end
end
forget_deliveries(key, state, gone, gone_from)
if #back > 0 then
  each_chunk(back_ids, function(part) set_places(key, part, WAITING) end)
  for i = #back, 1, -1 do redis.call('LPUSH', key .. ':b', back[i]) end
end
if state.outstanding < 0 then state.outstanding = 0 end
-- A retry may take much less than the message took before.
if more_bytes ~= 0 then add_held(state, 0, more_bytes) end
if is_down(state) and not was_down then keep_handful(key, state) end

local page = false
if #late == 0 then
  page = select(2, pump(lane, state, now, tonumber(ARGV[1]), settled))
else
  redis.call('ZADD', PREFIX .. 'wake', now + LATE_MS, lane)
end
save_state(key, state)
local waits = state.parked > 0 or state.left > 0 or state.spilled == 1 or redis.call('EXISTS', key .. ':b') == 1
local spare = 0
if not waits and 2 * state.outstanding <= rules_window(state) then spare = rules_window(state) - state.outstanding end
if state.ordered == 1 then spare = (state.parked > 0 or state.left > 0) and -1 or math.min(spare, 1) end
return {settled, page and 1 or 0, math.floor(state.window), math.floor(rules_pause(state, now)), spare, now,
  late, state.generation, is_prompt(state) and 1 or 0}
