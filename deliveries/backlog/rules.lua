-- Push window, push backoff and rate limit of one lane: pure arithmetic on its state, put in front of every verb's script.
-- The Python twins (deliveries/rules/window.py, share.py, backoff.py, bucket.py, flow.py) say what each rule is and why; a
-- property test holds the two to the same numbers, so keep the order of operations.
--
--   w       window: how many messages may be outstanding          v       level of the push backoff
--   r       share of acks among the last results                  since   requests from before raise it no more (ms)
--   l       mean latency of the last results (ms)                 resume  nothing is sent before this time (ms)
--   n       results that those two are means of                   b, bt   tokens in the bucket of the rate limit, and when (ms)
--   s       share of nacks that a smaller window does not lessen; sn  results it is a mean of
--   gap     how far apart that share sets deliveries (ms); 0 is not at all
--   a round: ph what for, t since when (ms), o the window then, c its results, f its nacks, q the sum of its acks'
--           latencies, peak the most tokens held when messages were sent off
--   a base, the round that a trial is compared with: bo the window, bc results, bf nacks, bl the mean latency of its acks
--   step    what the last trial of a larger window added           turn    which trial is next
--   cap, rate (messages/s), burst: the subscription's own limits; 0 is none
--
--   rules_new()                                           a new lane's state
--   rules_result(state, acked, latency_ms, now_ms, dice, repeated)
--                                                         one result; repeated: its message has failed twice already;
--                                                         dice in [0, 1) may be the same for a whole batch, as at most
--                                                         one result of a batch starts a pause
--   rules_window(state)                                   how many may be outstanding: the window in whole tokens,
--                                                         or 1 in backoff
--   rules_free(state, now_ms)                             how many may be sent off, with state.out outstanding
--   rules_spend(state, now_ms, count)                     so many were sent off; state.out includes them
--   rules_bucket_wait(state, now_ms)                      when the rate limit lets the next one go; nil if now
--   rules_pause(state, now_ms)                            how long until the next delivery may go, the gap included (ms)

local SLOW_START_LIMIT, LARGEST_WINDOW, LINEAR_STEP, UNPROVEN_LIMIT = 3000, 30000, 30, 100
local ACK_RATIO_ABOVE, LATENCY_BELOW_MS, MEMORY = 0.99, 1000, 1000
local SHORTEST_ROUND, REST_ROUNDS, REST_NACKS, FIRST_STEP, TELLING, QUARTER = 16, 2, 0.125, 0.5, 0.35, 0.25
local SLOWER, FASTER, QUARTERED_FROM, SLOW_START_AGAIN, SLOW_START_NACKS, OVERLOADED = 1.3, 0.85, 4, 8, 0.1, 0.25
local SHARE_MEMORY, SHARE_PRIOR, ROUND_MEMORY = 800, 20, 64
local GAP_ABOVE, CORNER, CORNER_GAP_MS, STEEP, FLAT, LAST, BURST_SECONDS = 0.03, 0.2, 560, 77, 11, 0.45, 0.05
local SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS, FREE_LEVEL, TOP_LEVEL, REPEATED = 100, 60000, 3, 12.25, 0.5
--- What a round is for.
local SLOW_START, REST, BASE, LARGER, FEWER_NACKS, LOWER_LATENCY = 0, 1, 2, 3, 4, 5

local RULE_FIELDS = {'w', 'r', 'l', 'n', 's', 'sn', 'gap', 'ph', 't', 'o', 'c', 'f', 'q', 'peak', 'bo', 'bc', 'bf', 'bl',
  'step', 'turn', 'v', 'since', 'resume', 'b', 'bt', 'cap', 'rate', 'burst'}

local function rules_new()
  local state = {}
  for _, name in ipairs(RULE_FIELDS) do state[name] = 0 end
  state.w, state.o, state.r, state.sn = 3, 3, 1, SHARE_PRIOR
  return state
end

local function is_fast(state) return state.r > ACK_RATIO_ABOVE and state.l < LATENCY_BELOW_MS end

local function share_learn(state)
  local nacks, results = state.f, state.c
  if results == 0 then return end
  state.sn = math.min(state.sn + results, SHARE_MEMORY)
  local memory = state.sn
  if state.s > CORNER then memory = math.max(memory * (CORNER / state.s) * (CORNER / state.s), SHARE_PRIOR) end
  local used = state.peak > 0 and math.min(state.o, state.peak) or state.o
  memory = math.max(memory, ROUND_MEMORY * math.min(results, used), results)
  state.s = math.min(math.max(state.s + (nacks - state.s * results) / memory, 0), 1)
  state.gap = 0
  if state.s > GAP_ABOVE then
    local doublings = STEEP * (math.min(state.s, CORNER) - CORNER)
    state.gap = CORNER_GAP_MS * (2 ^ doublings - 2 ^ (STEEP * (GAP_ABOVE - CORNER)))
    if state.s > CORNER then state.gap = state.gap * 2 ^ (FLAT * (math.min(state.s, LAST) - CORNER)) end
  end
end

local function round_begin(state, phase, size, now_ms)
  state.w, state.o, state.ph, state.t = size, size, phase, now_ms
  state.c, state.f, state.q, state.peak = 0, 0, 0, 0
end

local function base_set(state, latency_ms) state.bo, state.bc, state.bf, state.bl = state.o, state.c, state.f, latency_ms end

local function trial_larger(state, step, now_ms)
  local size = state.bo
  if size >= SLOW_START_LIMIT then
    local larger = is_fast(state) and math.min(size + LINEAR_STEP, LARGEST_WINDOW) or SLOW_START_LIMIT
    return round_begin(state, LARGER, larger, now_ms)
  end
  state.step = step
  if step >= size and size >= SLOW_START_AGAIN then return round_begin(state, SLOW_START, size, now_ms) end
  round_begin(state, LARGER, math.min(size + step, SLOW_START_LIMIT), now_ms)
end

local function trial_smaller(state, phase, now_ms)
  local less = phase == FEWER_NACKS and state.bf or math.floor(QUARTER * state.bo)
  round_begin(state, phase, math.max(state.bo - less, 1), now_ms)
end

local function trial(state, now_ms)
  local turn = state.turn
  if turn == 2 and state.bo < QUARTERED_FROM then turn = 0 end
  if state.bf >= OVERLOADED * state.bc then turn = 1 end
  state.turn = (turn + 1) % 3
  if turn == 1 then return trial_smaller(state, FEWER_NACKS, now_ms) end
  if turn == 2 then return trial_smaller(state, LOWER_LATENCY, now_ms) end
  trial_larger(state, math.max(math.floor(FIRST_STEP * math.sqrt(state.bo) + 0.5), 1), now_ms)
end

local function after_idle_round(state, now_ms)
  share_learn(state)
  state.bc = 0
  if state.ph == SLOW_START then return round_begin(state, SLOW_START, math.max(state.w, state.o), now_ms) end
  local size = (state.ph == REST or state.ph == BASE) and state.o or state.bo
  if state.gap > 0 then size = math.min(size, state.peak + 1) end
  round_begin(state, REST, size, now_ms)
end

local function after_slow_start(state, latency_ms, slower, now_ms)
  local failed = state.f >= math.max(SLOW_START_NACKS * state.c, 2)
  if failed or slower then
    state.turn = slower and 2 or 1
    return round_begin(state, REST, math.min(state.o, state.w), now_ms)
  end
  if state.w >= SLOW_START_LIMIT then return round_begin(state, REST, state.w, now_ms) end
  share_learn(state)
  base_set(state, latency_ms)
  round_begin(state, SLOW_START, state.w, now_ms)
end

local function after_round(state, now_ms)
  local phase = state.ph
  local acks = state.c - state.f
  local latency_ms = acks > 0 and state.q / acks or 0
  if state.peak > 0 and 2 * state.peak < state.w then return after_idle_round(state, now_ms) end
  if phase ~= SLOW_START and phase ~= LARGER then share_learn(state) end
  if phase == REST then return round_begin(state, BASE, state.o, now_ms) end
  if phase == BASE then
    base_set(state, latency_ms)
    return trial(state, now_ms)
  end
  local is_known = latency_ms > 0 and state.bl > 0
  local slower = is_known and latency_ms > SLOWER * state.bl
  if phase == SLOW_START then return after_slow_start(state, latency_ms, slower, now_ms) end
  local expected = state.bc > 0 and state.bf / state.bc * state.c or state.f
  if phase == LARGER then
    if state.f - expected >= TELLING * (state.o - state.bo) or state.f >= OVERLOADED * state.c or slower then
      return round_begin(state, REST, state.bo, now_ms)
    end
    base_set(state, state.bl)
    return trial_larger(state, 2 * state.step, now_ms)
  end
  local kept, again
  if phase == FEWER_NACKS then
    kept = state.bf > 0 and expected - state.f >= TELLING * expected
    again = state.f > 0 and state.o > 1
  else
    kept = is_known and latency_ms < FASTER * state.bl
    again = state.o >= QUARTERED_FROM
  end
  if not kept then return round_begin(state, REST, state.bo, now_ms) end
  base_set(state, latency_ms)
  if again then return trial_smaller(state, phase, now_ms) end
  round_begin(state, REST, state.o, now_ms)
end

local function round_is_over(state)
  local full = math.max(state.peak > 0 and math.min(state.o, state.peak) or state.o, SHORTEST_ROUND)
  if state.ph == REST then return state.c >= REST_ROUNDS * full or state.f >= math.max(REST_NACKS * full, 2) end
  if state.c >= full then return true end
  return state.ph == LARGER and state.bc > 0 and state.f - state.bf / state.bc * full >= TELLING * (state.o - state.bo)
end

local function means_result(state, acked, latency_ms)
  state.n = math.min(state.n + 1, math.max(MEMORY, state.w))
  state.r = state.r + ((acked and 1 or 0) - state.r) / state.n
  state.l = state.l + (latency_ms - state.l) / state.n
end

local function window_result(state, acked, latency_ms, now_ms)
  local counts = now_ms - latency_ms >= state.t
  if not acked then
    if counts then state.w = math.max(state.w - 1, 1) end
  elseif state.ph == SLOW_START and state.w < SLOW_START_LIMIT
    and (state.w < UNPROVEN_LIMIT or state.peak == 0 or 2 * state.peak >= state.w) then
    state.w = math.min(state.w + 1, SLOW_START_LIMIT)
  end
  if counts then
    state.c = state.c + 1
    if acked then state.q = state.q + latency_ms else state.f = state.f + 1 end
  end
  if state.w > SLOW_START_LIMIT and not is_fast(state) then return round_begin(state, REST, SLOW_START_LIMIT, now_ms) end
  if counts and round_is_over(state) then after_round(state, now_ms) end
end

-- Returns whether a pause began.
local function backoff_result(state, acked, latency_ms, now_ms, dice, repeated)
  local began_ms = now_ms - latency_ms
  if acked then
    if began_ms >= state.resume then state.v = 0 end
    return false
  end
  if began_ms < state.since then return false end
  state.v = math.min(state.v + (repeated and REPEATED or 1), TOP_LEVEL)
  state.since = now_ms
  if state.v <= FREE_LEVEL then return false end
  local longest = math.min(SHORTEST_PAUSE_MS * 2 ^ (state.v - FREE_LEVEL), LONGEST_PAUSE_MS)
  state.resume = now_ms + math.max(longest * (0.5 + 0.5 * dice), SHORTEST_PAUSE_MS)
  state.since = state.resume
  return true
end

-- Messages a second and how many at once: the subscription's own limit, or the gap that its nacks make, if slower.
local function send_limit(state)
  if state.gap <= 0 then return state.rate, state.burst end
  local rate = 1000 / state.gap
  if state.rate <= 0 then return rate, rate * BURST_SECONDS end
  rate = math.min(rate, state.rate)
  return rate, math.min(rate * BURST_SECONDS, state.burst > 0 and state.burst or state.rate)
end

-- Refills the bucket; returns its rate, 0 for no limit.
local function bucket_fill(state, now_ms)
  local rate, burst = send_limit(state)
  if rate <= 0 then return 0 end
  local depth = math.max(burst > 0 and burst or rate, 1)
  local gained = math.max(now_ms - state.bt, 0) * rate / 1000
  state.b = math.min(state.b + gained, depth)
  state.bt = math.max(now_ms, state.bt)
  return rate
end

local function rules_result(state, acked, latency_ms, now_ms, dice, repeated)
  local was_backing_off = state.v > FREE_LEVEL
  means_result(state, acked, latency_ms)
  if backoff_result(state, acked, latency_ms, now_ms, dice, repeated) then
    if not was_backing_off then share_learn(state) end
    state.bo, state.bc, state.bf, state.bl = 0, 0, 0, 0
    round_begin(state, SLOW_START, 1, state.resume)
  elseif not repeated then
    window_result(state, acked, latency_ms, now_ms)
  end
end

local function rules_window(state)
  if state.v > FREE_LEVEL then return 1 end
  if state.cap > 0 then return math.floor(math.min(state.w, state.cap)) end
  return math.floor(state.w)
end

local function rules_free(state, now_ms)
  if now_ms < state.resume then return 0 end
  local free = math.max(rules_window(state) - state.out, 0)
  if bucket_fill(state, now_ms) > 0 then free = math.min(free, math.floor(state.b)) end
  return free
end

local function rules_spend(state, now_ms, count)
  if bucket_fill(state, now_ms) > 0 then state.b = state.b - count end
  state.peak = math.max(state.peak, state.out)
end

local function rules_bucket_wait(state, now_ms)
  local rate = bucket_fill(state, now_ms)
  if rate <= 0 or state.b >= 1 then return nil end
  return state.bt + math.max(1 - state.b, 0) * 1000 / rate
end

local function rules_pause(state, now_ms) return math.max(state.resume - now_ms, state.gap, 0) end
