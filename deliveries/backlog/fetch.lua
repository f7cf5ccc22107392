-- fetch(queue, work; worker's region, batch, count, limit, lease) -> {messages, ms until the next wake or -1, epoch, lanes to page}
--
-- Wakes the lanes that are due, takes up to `count` messages from the queue, first those of prompt lanes, and records them as
-- one batch of this worker, so that they can be put back if it dies. Also claims lanes that want their next page; if there are
-- more, the wait is 0.
--   KEYS[1]  deliveries.<region>     KEYS[2]  ph:work:<worker> (record.lua)
--   ARGV[1]  region   ARGV[2]  the batch's name   ARGV[3]  at most this many   ARGV[4]  how many may wait in a lane
--   ARGV[5]  the worker's lease, if it has one: without it the worker gets no messages (beat.lua); "-" for a stock worker, whose
--            messages come in another way
-- Reads ph:epoch; moves ph:wake, ph:page, ph:bell:<region>; owns ph:work:<worker>; lists the worker in ph:workers; pumps lanes (pump.lua).

--- While messages of prompt lanes wait, others get this share of a fetch.
local LOW_SHARE = 1 / 16
--- A stock worker takes the highest priority first, however much of it waits. When it calls, so many of the lowest priority get
--- in line there.
local STOCK_LOW = 50
--- Lanes that a fetch wakes. A lane takes about 0.2 ms, for which the messages of prompt lanes wait.
local WOKEN = 8
tells_wake = true
local now = now_ms()
local limit = tonumber(ARGV[4])
for _, lane in ipairs(redis.call('ZRANGEBYSCORE', PREFIX .. 'wake', '-inf', now, 'LIMIT', 0, WOKEN)) do
  redis.call('ZREM', PREFIX .. 'wake', lane)
  local state = load_state(PREFIX .. lane)
  if state then
    pump(lane, state, now, limit)
    save_state(PREFIX .. lane, state)
  end
end

local count = tonumber(ARGV[3])
local low = low_of(KEYS[1])
if ARGV[5] == '-' then
  for _ = 1, STOCK_LOW do
    if not redis.call('LMOVE', low, KEYS[1], 'RIGHT', 'LEFT') then break end
  end
end
local prompt_count = math.min(redis.call('LLEN', KEYS[1]), count - math.min(redis.call('LLEN', low), math.ceil(LOW_SHARE * count)))
local messages = take_batch(KEYS[1], ARGV[1], KEYS[2], ARGV[2], prompt_count, count - prompt_count, ARGV[5], now)

local pages = {}
for _, lane in ipairs(redis.call('SPOP', PREFIX .. 'page', 8)) do
  local state = load_state(PREFIX .. lane)
  if state and (state.spilled == 1 or has_key_to_read(PREFIX .. lane, state)) then
    local page = {request_page(PREFIX .. lane, state, now, limit)}
    save_state(PREFIX .. lane, state)
    local wake = redis.call('ZSCORE', PREFIX .. 'wake', lane)
    if not wake or tonumber(wake) > state.paging_until_ms then redis.call('ZADD', PREFIX .. 'wake', state.paging_until_ms + 1, lane) end
    pages[#pages + 1] = lane
    for _, field in ipairs(page) do pages[#pages + 1] = field end
  end
end

local more = redis.call('EXISTS', PREFIX .. 'page') == 1
local nearest = redis.call('ZRANGE', PREFIX .. 'wake', 0, 0, 'WITHSCORES')
local wait = more and 0 or nearest[2] and math.max(tonumber(nearest[2]) - now, 0) or -1
return {messages, wait, redis.call('GET', PREFIX .. 'epoch') or '0', pages}
