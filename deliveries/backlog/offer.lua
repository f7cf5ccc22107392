-- offer(lane, ...; limit, generation, parts, fields, settings of each lane, id, text, ...) -> nothing
--
-- Appends the same new deliveries to the backlog of each lane, and pumps it. Deliveries that do not fit stay in the database:
-- the lane is then spilled from the first refused id on, and later offers are refused too, so that the publish order is
-- kept. So are those of an ordered lane that has not had the message before each in its key: that one's offer is late or lost.
-- An error in one lane does not keep the others from their deliveries; the first error is the reply.
--   KEYS          the lanes, of one cell, as "ph:<subscription>:<region>"
--   ARGV[1]       how many may wait in Redis, for each lane
--   ARGV[2]       the generation of a lane that Redis does not know yet
--   ARGV[3..12]   the parts of a task message between its ids and its text (task_parts in taskmessage.py)
--   ARGV[13]      how many of the fields at the end each message has: 2, or 4 if a lane is ordered
--   ARGV[14..]    for each lane "mode,outstanding,messages/s,burst,ordered": its mode, the subscription's own limits, and 1 if it is
--                 ordered, for a lane that Redis does not know yet
--   the others    for each message, in the order of ids: its id, its escaped JSON text, the digest of its ordering key or "", and the
--                 id of the message before it in its key: "0" if there was none, "" if nobody knows
-- Owns every key of the lanes (common.lua).
local now = now_ms()
local limit = tonumber(ARGV[1])
local P1, P2, P3, P4, P5, P6, P7, P8, P9, P10 = unpack(ARGV, 3, 12)
local FIELDS = tonumber(ARGV[13])
local ids, texts, orderings, befores, joined_bytes = {}, {}, {}, {}, 0
for i = 14 + #KEYS, #ARGV, FIELDS do
  ids[#ids + 1] = ARGV[i]
  texts[#texts + 1] = ARGV[i + 1]
  if FIELDS == 4 then
    orderings[#orderings + 1] = ARGV[i + 2]
    befores[#befores + 1] = ARGV[i + 3]
  end
end

-- Redis does not know the lane, so the database may have more deliveries of it.
local function lane_from_settings(settings)
  local mode, cap, rate, burst, ordered = string.match(settings, '^(%d),([^,]+),([^,]+),([^,]+),(%d)$')
  local state = new_state(tonumber(mode), true, ARGV[2])
  state.cap, state.rate, state.burst, state.ordered = tonumber(cap), tonumber(rate), tonumber(burst), tonumber(ordered)
  return state
end

local function append_first(lane, key, count, generation, keys)
  local s, g = string.match(lane, '^%d+'), generation
  return append(key, ids, count, function(i)
    local id = ids[i]
    return P1 .. id .. P2 .. s .. P3 .. g .. P4 .. s .. P5 .. id .. P6 .. id .. P7 .. s .. P8 .. s .. P9 .. texts[i] .. P10
  end, keys)
end

-- Returns whether a page may have had the messages already. They may be settled since, so only the database knows.
local function is_late(read_to) return id_less(ids[1], read_to or '0') end

-- Leaves the messages to the database, from which a spilled lane reads on. Returns false if it has read beyond them already.
local function stay_behind(key, cursor, spilled_from)
  if id_less(ids[1], cursor) then return false end
  if spilled_from == '' or id_less(ids[1], spilled_from) then
    redis.call('HSET', key .. ':s', STATE_CODES.spilled_from, ids[1])
  end
  return true
end

-- Appends the messages to the backlog of a push lane in which they only join others, or leaves them to the database if others
-- wait there too, so that the rest of its state stays as it is. Returns whether it did.
local function join(lane, key, length)
  if length == 0 then return false end
  local codes = STATE_CODES
  local fields = redis.call('HMGET', key .. ':s', codes.mode, codes.spilled, codes.ordered, codes.backoff_level,
    codes.generation, codes.held, codes.held_bytes, codes.results_seen, codes.ack_ratio, codes.read_to, codes.cursor,
    codes.spilled_from, codes.latency_ms, codes.left)
  if tonumber(fields[1]) ~= PUSH or not fields[7] then return false end
  -- A message may come before those of its key that were left to the database.
  if tonumber(fields[14] or 0) > 0 then return false end
  if tonumber(fields[2]) == 1 then return stay_behind(key, fields[11], fields[12]) end
  if length + #ids > limit or is_over_budget() then return false end
  if tonumber(fields[3]) ~= 0 or tonumber(fields[4]) >= DOWN_LEVEL or is_late(fields[10]) then return false end
  local is_fast = acks_soon(tonumber(fields[8]), tonumber(fields[9]), tonumber(fields[13]))
  if length + #ids > HANDFUL and not is_fast then return false end
  local count, bytes = append_first(lane, key, #ids, fields[5])
  redis.call('HSET', key .. ':s', codes.held, fields[6] + count, codes.held_bytes, string.format('%.0f', fields[7] + bytes))
  joined_bytes = joined_bytes + bytes
  return true
end

-- Returns whether an ordered lane, which is not spilled, has had the message before each of these in its ordering key, and no
-- later one: it is in Redis, it was the last one that came of the key, or it is one of these. If it was left to the database, this
-- one is left there, too.
local function follows(key, state)
  if FIELDS ~= 4 then return false end
  local here = redis.call('HMGET', key .. ':d', unpack(befores))
  local last = redis.call('HMGET', key .. ':t', unpack(orderings))
  local own = {}
  for i, before in ipairs(befores) do
    if orderings[i] ~= '' then
      if last[i] and not id_less(last[i], ids[i]) then return false end
      if before ~= '0' and not here[i] and own[orderings[i]] ~= before and last[i] ~= before then
        local left = state.left > 0 and left_of(key, orderings[i])
        if not left or id_less(before, left) then return false end
      end
    end
    own[orderings[i]] = ids[i]
  end
  return true
end

-- Returns how many of the deliveries a lane takes in which `length` others wait.
local function taken_by(key, state, length)
  if state.spilled == 1 or state.mode == IDLE then return 0 end
  if state.ordered == 1 then
    if is_late(state.cursor) or not follows(key, state) then return 0 end
  elseif is_late(state.read_to) then
    return 0
  end
  local taken = math.max(math.min(limit_of(key, state, limit, now) - length - state.parked, #ids), 0)
  if not is_lean(state) then return taken end
  for i = 1, taken do
    if #texts[i] > LEAN_TEXT then return i - 1 end
  end
  return taken
end

local function offer(key, settings)
  local lane = lane_of(key)
  local length = redis.call('LLEN', key .. ':b')
  if join(lane, key, length) then return end
  local state = load_state(key) or lane_from_settings(settings)
  local was_spilled, taken = state.spilled == 1, taken_by(key, state, length)
  if taken > 0 then
    add_held(state, append_first(lane, key, taken, state.generation, state.ordered == 1 and orderings or nil))
    if state.ordered == 1 then
      note_last(key, ids, orderings, taken)
      -- An ordered lane goes on reading at its cursor.
      note_known(state, {ids[taken]})
    end
  end
  if taken < #ids then spill(key, state, ids[taken + 1]) end
  note_late(key, state, ids, orderings)
  -- A lane that had messages already has been pumped, and is pumped again when more of them may go out.
  local is_waiting = state.mode == PUSH
    and (state.spilled == 0 and (length > 0 or waits_for_token(state, now)) or was_spilled and now < state.resume_ms)
  if not is_waiting then pump(lane, state, now, limit) end
  save_state(key, state)
  if state.mode == PULL then ring_pullers(lane) end
end

local first_error
for i, key in ipairs(KEYS) do
  local ok, err = pcall(offer, key, ARGV[13 + i])
  if not ok then first_error = first_error or err end
end
if joined_bytes > 0 then redis.call('INCRBY', PREFIX .. 'bytes', string.format('%.0f', joined_bytes)) end
if type(first_error) == 'string' then return redis.error_reply(first_error) end
return first_error
