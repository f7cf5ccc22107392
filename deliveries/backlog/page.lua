-- page(lane; limit, next id, number, generation, complete, keys, lean, probe, id, message, ...) -> whether the lane wants another
-- page
--
-- Appends a page that a worker has read from the database to a lane's backlog, and pumps the lane. A page that the lane does
-- not expect any more is dropped.
--   KEYS[1]  the lane
--   ARGV[1]  how many may wait in Redis
--   ARGV[2]  the id to read on from, or for a page of ordering keys "<key>:<id>,...": the first message that the page does not have,
--            or nothing, of each; ARGV[3..4] the number of the page and the generation, which request_page returned
--   ARGV[5]  "1" if the database had no more
--   ARGV[6]  ordered lanes only: the digest of each message's ordering key, or "", joined by commas
--   ARGV[7]  "1" if it has no large payload; while Redis is over its budget, a page that may have some is read again
--   ARGV[8]  "1" for a probe, "2" for a page of ordering keys (request_page)
--   ARGV[9..] id and complete Celery message, alternating, in publish order
-- Owns every key of the lane (common.lua).
local key = KEYS[1]
local lane = lane_of(key)
local now = now_ms()
local state = load_state(key)
if not state or state.generation ~= ARGV[4] or not expects_page(state, tonumber(ARGV[3])) then return 0 end

local orderings = {}
if state.ordered == 1 then
  for value in string.gmatch(ARGV[6] .. ',', '([^,]*),') do orderings[#orderings + 1] = value end
end
local ids, messages = {}, {}
for i = 9, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  messages[#messages + 1] = ARGV[i + 1]
end
local is_taken = ARGV[7] == '1' or not is_over_budget()
if ARGV[8] == '2' then
  state.paging_until_ms = 0
  if is_taken then
    -- The lane's own pages may begin before these messages, and read them again.
    note_known(state, ids)
    append_of_keys(key, state, ARGV[2], ids, messages, orderings)
  end
elseif ARGV[8] == '1' then
  local count, bytes = append(key, ids, #ids, function(i) return messages[i] end)
  add_held(state, count, bytes)
  note_known(state, ids)
  state.paging_until_ms = 0
  if count == 0 then rules_pass(state) end
elseif is_taken then
  -- What waits here is tried in turns with retries while the lane is in backoff, so it must not be retries, too.
  local due = state.mode == PUSH and state.ordered == 0 and now
  add_held(state, append(key, ids, #ids, function(i) return messages[i] end, orderings, due))
  note_late(key, state, ids, orderings)
  page_arrived(state, ARGV[2], ARGV[5] == '1')
  if state.ordered == 1 and ARGV[5] == '1' then note_last(key, ids, orderings, #ids) end
else
  state.paging_until_ms = 0
end
local _, page = pump(lane, state, now, tonumber(ARGV[1]))
save_state(key, state)
if state.mode == PULL then ring_pullers(lane) end
return page and 1 or 0
