-- settle(lane; limit, dice, ids, codes, latencies, [delay, message] ...) -> {settled, page wanted, window, pause}
--
-- Ends the leases of a batch: acks are forgotten, nacks wait in the retry set, and the tokens come back; the window and
-- the push backoff move; then the lane is pumped. Settling twice is harmless: only a delivery that holds a token counts.
-- `window` and `pause` (ms) are the lane's from now on.
--   KEYS[1]  the lane
--   ARGV[1]  how many may wait here
--   ARGV[2]  a number in [0, 1) for the jitter of the push backoff
--   ARGV[3]  the deliveries, joined by commas, in order of their results
--   ARGV[4]  a code for each: a = ack, n = nack, r = release (unsent; back to the backlog), x = drop (owed no more),
--            d = nack that is owed no more, as it went to the dead-letter topic; a capital letter: the message has failed
--            twice already, so that this result says little about the endpoint
--   ARGV[5]  the latency of each in ms, joined by commas
--   ARGV[6..] for each n and r in order: delay in ms, and the Celery message of the next attempt
-- Owns every key of the lane (common.lua).
local lane = KEYS[1]
local key = PREFIX .. lane
local now = now_ms()
local state = load_state(key)
-- Wiped: the database still has what was not acked, and the lane's next offer or audit reads it.
if not state then return {0, 0, 0, 0} end

local ids, latencies = {}, {}
for id in string.gmatch(ARGV[3], '[^,]+') do ids[#ids + 1] = id end
for value in string.gmatch(ARGV[5], '[^,]+') do latencies[#latencies + 1] = tonumber(value) end
local codes = ARGV[4]
local dice = tonumber(ARGV[2])

local where = {}
each_chunk(ids, function(part)
  for _, value in ipairs(redis.call('HMGET', key .. ':d', unpack(part))) do where[#where + 1] = value end
end)

local gone, gone_from, back, back_ids, settled = {}, {}, {}, {}, 0
local extra = 6
for i, id in ipairs(ids) do
  local letter = string.sub(codes, i, i)
  local code = string.lower(letter)
  local delay, message
  if code == 'n' or code == 'r' then
    delay, message = tonumber(ARGV[extra]), ARGV[extra + 1]
    extra = extra + 2
  end
  if where[i] == 't' then
    settled = settled + 1
    state.out = state.out - 1
    where[i] = false
    if code == 'a' or code == 'n' or code == 'd' then
      rules_result(state, code == 'a', latencies[i], now, dice, letter ~= code)
    end
    if code == 'n' then
      redis.call('HSET', key .. ':d', id, 'r')
      redis.call('ZADD', key .. ':z', now + delay, id)
      redis.call('HSET', key .. ':m', id, message)
    elseif code == 'r' then
      back[#back + 1] = message
      back_ids[#back_ids + 1] = id
    else
      gone[#gone + 1] = id
      gone_from[#gone] = false
    end
  elseif where[i] and (code == 'a' or code == 'x' or code == 'd') then
    -- A second answer for a delivery that already waits again: it is owed no more.
    gone[#gone + 1] = id
    gone_from[#gone] = where[i]
    where[i] = false
  end
end
forget_deliveries(key, state, gone, gone_from)
if #back > 0 then
  each_chunk(back_ids, function(part) set_where(key, part, 'b') end)
  for i = #back, 1, -1 do redis.call('LPUSH', key .. ':b', back[i]) end
end
if state.out < 0 then state.out = 0 end

local _, page = pump(lane, state, now, tonumber(ARGV[1]), settled)
save_state(key, state)
return {settled, page and 1 or 0, math.floor(state.w), math.floor(rules_pause(state, now))}
