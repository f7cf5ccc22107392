-- Push window, push backoff and rate limit of one lane: pure arithmetic on its state, put in front of every verb's script.
-- The Python twins (deliveries/rules/window.py, backoff.py, bucket.py, flow.py) say what each rule is and why; a property
-- test holds the two to the same numbers, so keep the order of operations.
--
--   w       window: how many messages may be outstanding          v       level of the push backoff
--   r       share of acks among the last results                  resume  nothing is sent before this time (ms)
--   l       mean latency of the last results (ms)                 peak    tokens held when messages were last sent off
--   n       results those two are means of, at most 1,000         k       acks in a row, at most 12
--   g       results left of the windowful that shrank last        b, bt   tokens in the bucket of the rate limit, and when (ms)
--   cap, rate (messages/s), burst: the subscription's own limits; 0 is none
--
--   rules_new()                                           a new lane's state
--   rules_result(state, acked, latency_ms, now_ms, dice)  one result; dice in [0, 1) may be the same for a whole batch,
--                                                         as at most one result of a batch starts a pause
--   rules_window(state)                                   how many may be outstanding: the window in whole tokens,
--                                                         or 1 in backoff
--   rules_free(state, now_ms)                             how many may be sent off, with state.out outstanding
--   rules_spend(state, now_ms, count)                     so many were sent off; state.out includes them
--   rules_bucket_wait(state, now_ms)                      when the rate limit lets the next one go; nil if now

local SLOW_START_LIMIT, LARGEST_WINDOW, LINEAR_STEP, UNPROVEN_LIMIT = 3000, 30000, 30, 100
local ACK_RATIO_ABOVE, LATENCY_BELOW_MS, MEMORY = 0.99, 1000, 1000
local SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS, FREE_LEVEL, TOP_LEVEL, DECAY, HEALED_RUN = 100, 60000, 3, 12.25, 0.0006, 12

local RULE_FIELDS = {'w', 'r', 'l', 'n', 'g', 'v', 'k', 'resume', 'peak', 'b', 'bt', 'cap', 'rate', 'burst'}

local function rules_new()
  return {w = 3, r = 1, l = 0, n = 0, g = 0, v = 0, k = 0, resume = 0, peak = 0, b = 0, bt = 0, cap = 0, rate = 0, burst = 0}
end

local function window_grow(state)
  local w = state.w
  if w >= UNPROVEN_LIMIT and 2 * state.peak < w then return end
  if w < SLOW_START_LIMIT then
    state.w = math.min(w + 1, SLOW_START_LIMIT)
  else
    state.w = math.min(w + LINEAR_STEP / w, LARGEST_WINDOW)
  end
end

local function window_result(state, acked, latency_ms)
  state.n = math.min(state.n + 1, MEMORY)
  state.r = state.r + ((acked and 1 or 0) - state.r) / state.n
  state.l = state.l + (latency_ms - state.l) / state.n
  state.g = math.max(state.g - 1, 0)
  if acked then
    window_grow(state)
  elseif state.g == 0 then
    state.w = math.max(state.w * (0.5 + 0.5 * state.r), 1)
    state.g = state.peak
  end
  if state.w > SLOW_START_LIMIT and not (state.r > ACK_RATIO_ABOVE and state.l < LATENCY_BELOW_MS) then
    state.w = SLOW_START_LIMIT
  end
end

-- Returns whether a pause began.
local function backoff_result(state, acked, latency_ms, now_ms, dice)
  if now_ms - latency_ms < state.resume then return false end
  if acked then
    state.k = math.min(state.k + 1, HEALED_RUN)
    state.v = state.k == HEALED_RUN and 0 or state.v - DECAY * state.v * state.v * state.v
    return false
  end
  state.v = math.min(state.v + 1, TOP_LEVEL)
  state.k = 0
  if state.v <= FREE_LEVEL then return false end
  local longest = math.min(SHORTEST_PAUSE_MS * 2 ^ (state.v - FREE_LEVEL), LONGEST_PAUSE_MS)
  state.resume = now_ms + math.max(longest * (0.5 + 0.5 * dice), SHORTEST_PAUSE_MS)
  return true
end

local function bucket_fill(state, now_ms)
  local depth = math.max(state.burst > 0 and state.burst or state.rate, 1)
  local gained = math.max(now_ms - state.bt, 0) * state.rate / 1000
  state.b = math.min(state.b + gained, depth)
  state.bt = math.max(now_ms, state.bt)
end

local function rules_result(state, acked, latency_ms, now_ms, dice)
  window_result(state, acked, latency_ms)
  if backoff_result(state, acked, latency_ms, now_ms, dice) then state.w, state.g = 1, 0 end
end

local function rules_window(state)
  if state.v > FREE_LEVEL then return 1 end
  if state.cap > 0 then return math.floor(math.min(state.w, state.cap)) end
  return math.floor(state.w)
end

local function rules_free(state, now_ms)
  if now_ms < state.resume then return 0 end
  local free = math.max(rules_window(state) - state.out, 0)
  if state.rate > 0 then
    bucket_fill(state, now_ms)
    free = math.min(free, math.floor(state.b))
  end
  return free
end

local function rules_spend(state, now_ms, count)
  if state.rate > 0 then
    bucket_fill(state, now_ms)
    state.b = state.b - count
  end
  state.peak = state.out
end

local function rules_bucket_wait(state, now_ms)
  if state.rate <= 0 then return nil end
  bucket_fill(state, now_ms)
  if state.b >= 1 then return nil end
  return state.bt + math.max(1 - state.b, 0) * 1000 / state.rate
end
