-- offer(lane; mode, limit, page, cursor, seq, complete, keys, cap, rate, burst, id, message, ...)
--   -> {accepted, refused, page wanted}
--
-- Appends deliveries to a lane's backlog and pumps it. Deliveries that do not fit stay in the database: the lane is then
-- spilled from the first refused id on, and later offers are refused too, so that the publish order is kept.
--   KEYS[1]  the lane, "<subscription>:<region>"
--   ARGV[1]  mode of a lane that Redis does not know yet
--   ARGV[2]  how many may wait in Redis
--   ARGV[3]  "" from a publisher; "page" from the worker that read a page of the database
--   ARGV[4]  page only: the id to read on from; ARGV[5] page only: the lane's spill_count before the read;
--   ARGV[6]  page only: "1" if the database had no more
--   ARGV[7]  page of an ordered lane only: the digest of each message's ordering key, or "", joined by commas
--   ARGV[8..10] the subscription's own limits of a lane that Redis does not know yet: outstanding, messages/s, burst
--   ARGV[11..] id and message, alternating, in publish order
-- Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local now = now_ms()
local limit = tonumber(ARGV[2])
local is_page = ARGV[3] == 'page'
local state = load_state(key)
-- Redis was wiped after the page was requested: the rebuild makes the lane read the database again.
if not state and is_page then return {0, 0, 0} end
-- Redis does not know the lane, so the database may have more deliveries of it.
if not state then
  state = new_state(tonumber(ARGV[1]), true)
  state.cap, state.rate, state.burst = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
end

local room = limit - redis.call('LLEN', key .. ':b')
local orderings = {}
if state.ordered == 1 then
  for value in string.gmatch(ARGV[7] .. ',', '([^,]*),') do orderings[#orderings + 1] = value end
end
local ids, messages = {}, {}
for i = 11, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  messages[#messages + 1] = ARGV[i + 1]
end

local accepted = 0
if is_page then
  room = #ids
elseif state.spilled == 1 or state.mode == IDLE or state.ordered == 1 then
  room = 0
end
local taken = math.max(math.min(room, #ids), 0)
for first = 1, taken, CHUNK do
  local part, texts = {}, {}
  for i = first, math.min(first + CHUNK - 1, taken) do part[#part + 1] = ids[i] end
  local places = redis.call('HMGET', key .. ':d', unpack(part))
  local fresh, keys = {}, {}
  for i, id in ipairs(part) do
    if not places[i] then
      fresh[#fresh + 1] = id
      texts[#texts + 1] = messages[first + i - 1]
      local ordering = orderings[first + i - 1]
      if ordering and ordering ~= '' then
        keys[#keys + 1] = id
        keys[#keys + 1] = ordering
      end
    end
  end
  if #keys > 0 then redis.call('HSET', key .. ':o', unpack(keys)) end
  if #fresh > 0 then
    set_places(key, fresh, WAITING)
    redis.call('RPUSH', key .. ':b', unpack(texts))
    accepted = accepted + #fresh
  end
end

if is_page then
  state.paging_until_ms = 0
  -- If the lane was spilled during the read, those rows may lie before this page's cursor: the lane's cursor stays.
  if state.spill_count == tonumber(ARGV[5]) then
    state.cursor = ARGV[4]
    if ARGV[6] == '1' then state.spilled = 0 end
  end
elseif taken < #ids then
  spill(state, ids[taken + 1])
end

local _, page = pump(lane, state, now, limit)
save_state(key, state)
if state.mode == PULL then ring_pullers(lane) end
return {accepted, #ids - taken, page and 1 or 0}
