-- offer(lane; mode, limit, page, cursor, seq, complete, keys, cap, rate, burst, id, message, ...)
--   -> {accepted, refused, page wanted}
--
-- Appends deliveries to the head of a lane's backlog and pumps. What does not fit stays in the database: the lane is
-- then "spilled" from the first refused id on, and later offers are refused too, so that publish order holds.
--   KEYS[1]  the lane, "<subscription>:<region>"
--   ARGV[1]  mode for a lane Redis does not know yet
--   ARGV[2]  how many may wait here
--   ARGV[3]  "" from a publisher; "page" from the worker that read a page of the database
--   ARGV[4]  page only: the id to read on from; ARGV[5] page only: the lane's seq before the read;
--   ARGV[6]  page only: "1" when the database held no more
--   ARGV[7]  page of an ordered lane only: the digest of each message's ordering key, or nothing, joined by commas
--   ARGV[8..10] the subscription's own limits for a lane Redis does not know yet: outstanding, messages a second, burst
--   ARGV[11..] id and message, alternating, in publish order
-- Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local now = now_ms()
local limit = tonumber(ARGV[2])
local is_page = ARGV[3] == 'page'
local state = load_state(key)
-- Wiped since the page was asked for: the rebuild has the lane read again.
if not state and is_page then return {0, 0, 0} end
-- Unknown: whatever the database has for this lane may not be here.
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
elseif state.spill == 1 or state.mode == 0 or state.ordered == 1 then
  room = 0
end
local taken = math.max(math.min(room, #ids), 0)
for first = 1, taken, CHUNK do
  local part, texts = {}, {}
  for i = first, math.min(first + CHUNK - 1, taken) do part[#part + 1] = ids[i] end
  local where = redis.call('HMGET', key .. ':d', unpack(part))
  local fresh, keys = {}, {}
  for i, id in ipairs(part) do
    if not where[i] then
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
    set_where(key, fresh, 'b')
    redis.call('RPUSH', key .. ':b', unpack(texts))
    accepted = accepted + #fresh
  end
end

if is_page then
  state.paging = 0
  -- Somebody spilled while we read: what he meant may lie behind our cursor, so his word stands.
  if state.seq == tonumber(ARGV[5]) then
    state.cur = ARGV[4]
    if ARGV[6] == '1' then state.spill = 0 end
  end
elseif taken < #ids then
  spill(state, ids[taken + 1])
end

local _, page = pump(lane, state, now, limit)
save_state(key, state)
if state.mode == 2 then ring_pullers(lane) end
return {accepted, #ids - taken, page and 1 or 0}
