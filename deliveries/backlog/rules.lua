-- Push window, push backoff and rate limit of one lane: pure arithmetic on its state, at the beginning of the verbs' library. The
-- simulator and the tests run this file too (bench/law.py); docs/flow-control.md says what the law is for.
--
-- Push window (docs/spec-delivery.md#push-window). Between the bounds it looks for the size at which the endpoint works best. It never
-- judges by single failures: it compares two sizes, a windowful of results at each (a round), and keeps the better one. A larger
-- window is better unless most of what it adds is nacked or the latency rises with it. Nacks that a smaller window does not
-- reduce have nothing to do with load: the window stays, and they count for the lane's share of nacks instead. After slow start
-- rounds follow in a cycle: a rest of two windowfuls, a base, and a trial. The trials take turns: a larger window, one that is
-- smaller by the base's nacks, and one that is smaller by a quarter. A trial that succeeds is the base of the next, larger step.
--
-- Push backoff (docs/spec-delivery.md#push-backoff). With one nack in five a delivery goes out about every 500 ms, and with nothing but
-- nacks every 30 to 60 s. The first point is met by a gap between deliveries, which depends on the share of nacks that a smaller
-- window does not reduce. It halves whenever the share falls by 1.3 percentage points, so that no point costs much more than the
-- next, and it is 0 below 3 %. The second point is met by pauses: a level counts the nacks since the last ack, and above
-- FREE_LEVEL the lane sends one message at a time, and each nack starts a pause. One ack ends that. A nack counts only if its
-- request began after the previous nack was known, and an ack only if its request began after the last pause, because older
-- requests say nothing about the present. So the thousands of requests that are outstanding when an endpoint dies count as one
-- nack, and an outage of a second costs pauses of about a second.
--
-- The state's fields (deliveries/rules/flow.py has the short name that each has in Redis, and its first value):
--   window            how many messages may be outstanding
--   ack_ratio         share of acks among the last results
--   latency_ms        mean latency of the last results
--   results_seen      number of results behind those two means
--   nack_share        share of nacks that a smaller window does not reduce; nack_share_seen: the results behind it
--   gap_ms            time between two deliveries that this share demands; 0 is none
--   phase             what the current round of results is for; round_began_ms: when it began
--   round_size        the window at that time; round_results, round_nacks: its results and nacks
--   round_latency_ms  the sum of its acks' latencies; round_peak: the most tokens held when messages were sent
--   base_size, base_results, base_nacks, base_latency_ms (mean): the round that a trial is compared with
--   step              what the last trial of a larger window added; turn: which trial is next
--   first_nacks       share of nacks among the last first attempts; retry_nacks: among the last retries
--   poisoned          1 while it is clear that messages are bad
--   retries_out       the tokens that retries hold
--   retry_credit      how many other messages have gone out for which no retry has
--   backoff_level     level of the push backoff; backoff_since_ms: older requests no longer raise it
--   resume_ms         nothing is sent before this time
--   acked_ms          when the last ack came whose request began after the last nack and after the last restart; 0 if none did
--   bucket_tokens     tokens in the bucket of the rate limit at the time bucket_filled_ms
--   cap, rate (messages/s), burst: the subscription's own limits; 0 is none
--
--   rules_new()                                           a new lane's state
--   rules_restart(state, now_ms)                          forgets what the results have taught, except for the rate
--                                                         limit's bucket; requests that began before no longer count
--   rules_result(state, acked, latency_ms, now_ms, dice, repeated)
--                                                         counts one result; repeated: its message has failed
--                                                         before; dice in [0, 1) may be the same for a whole batch,
--                                                         because at most one of its results starts a pause
--   rules_window(state)                                   how many may be outstanding: the window in whole tokens,
--                                                         or 1 in backoff
--   rules_free(state, now_ms)                             how many may be sent now, besides state.outstanding
--   rules_retries(state, free)                            how many of the free tokens retries may take, and how many of
--                                                         these before other messages
--   rules_pass(state)                                     lets a retry be next, as no other message waits
--   rules_spend(state, now_ms, count, retries)            counts messages sent, of which some are retries;
--                                                         state.outstanding includes them
--   rules_return(state, repeated)                         counts one token that came back
--   rules_bucket_wait(state, now_ms)                      when the rate limit lets the next one go; nil if now
--   rules_countdown(attempt, minimum_ms, maximum_ms, dice)  how long a message waits after its failed attempt (ms); the
--                                                         twin of countdown_ms in retry.py
--   rules_pause(state, now_ms)                            how long until the next delivery may go, the gap included (ms)

--- Up to this window each ack of slow start adds 1, which doubles the window per round trip.
local SLOW_START_LIMIT, LARGEST_WINDOW = 3000, 30000
--- Beyond slow start a larger window is larger by this much. At 1, as in TCP, 30,000 would be 27,000 round trips away.
local LINEAR_STEP = 60
--- From this size on a window grows only while at least half of it is used (TCP's congestion window validation, RFC 7661): a
--- trickle of acks proves nothing about thousands of concurrent requests.
local UNPROVEN_LIMIT = 100
--- The conditions for a window beyond slow start.
local ACK_RATIO_ABOVE, LATENCY_BELOW_MS = 0.99, 1000
--- A window that has reached SLOW_START_LIMIT stays there while this share is acked: 98 %, with room for chance.
local ACK_RATIO_HELD = 0.97
--- Ack ratio and mean latency are means over all results at first, and later decay over this many, or a windowful.
local MEMORY = 1000
--- A round has a windowful of results, but at least this many: with fewer the comparison would be pure chance.
local SHORTEST_ROUND = 16
--- The length of a rest in rounds: it makes trials rare, because each costs some nacks at an endpoint's limit. It ends early when
--- more than this share of a windowful is nacked.
local REST_ROUNDS, REST_NACKS = 2, 0.125
--- The first trial of a larger window adds half its square root, about as much as nacks vary by chance. The steps double.
local FIRST_STEP = 0.5
--- A larger window is given up if more than this share of what it adds is nacked. One that is smaller by the nacks of its base is
--- kept if it saves this share of them. Either difference must also exceed the square root of the expected nacks, because chance
--- alone makes that much: otherwise random nacks would keep a small window small.
local TELLING = 0.35
--- A larger window is given up if its latency exceeds that of its base by the first factor; a smaller one is kept if its latency
--- is below the second. It must also differ by so many ms: a smaller difference may come from the worker and its machine.
local SLOWER, FASTER, SLOWER_MS, FASTER_MS = 1.3, 0.85, 10, 3
--- From the second number on a window that is smaller by a quarter can be tried.
local QUARTER, QUARTERED_FROM = 0.25, 4
--- From this size on a step may double the window: then slow start begins again.
local SLOW_START_AGAIN = 8
--- Slow start ends when this share of a round is nacked, and two at least, beyond the share that load does not explain.
local SLOW_START_NACKS = 0.1
--- From this share of nacks on only smaller windows are tried.
local OVERLOADED = 0.25
--- The share of nacks is a mean over at least the second number of results and at most the first. In between it is over this share
--- of all results, so that those of the beginning, when nothing was known, are soon forgotten.
local SHARE_MEMORY, SHARE_SHORTEST, SHARE_GROWTH = 800, 20, 0.4
--- It begins anew when a lane without a gap has so many nacks more than expected in a round, in units of what chance makes, and 3
--- at least: the endpoint has changed.
local SURPRISE = 3
--- A windowful of results moves the share by at most one part in this many, because a burst of nacks at an endpoint's limit is
--- over after a few rounds.
local ROUND_MEMORY = 32
--- Up to the first share there is no gap. At CORNER deliveries are CORNER_GAP_MS apart. Beyond it the gap grows slowly, up to
--- LAST: the pause takes over. STEEP and FLAT are its doublings per unit of the share, below the corner and above it.
local GAP_ABOVE, CORNER, CORNER_GAP_MS, STEEP, FLAT, LAST = 0.03, 0.2, 560, 77, 11, 0.45
--- A lane with a gap sends at most what is due in this time at once, so that its deliveries come evenly.
local BURST_SECONDS = 0.05
--- A pause doubles with each level, from the first number to the second. TOP_LEVEL is the level of the longest pause, at least
--- FREE_LEVEL + log2(LONGEST_PAUSE_MS / SHORTEST_PAUSE_MS).
local SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS, TOP_LEVEL = 100, 60000, 12.25
--- By how much a nack raises the level if its message has failed before, which says less about the endpoint, and by how much if
--- nacks are due to bad messages: if only such messages are left, thousands are dead-lettered before the lane pauses.
local REPEATED, POISONED = 0.5, 0.001
--- Nacks are due to bad messages, and not to the endpoint, if at least this share of the last retries was nacked, and so much more
--- than of the last first attempts: an endpoint that is full or fails by chance nacks either as often.
local POISON, POISON_MARGIN = 0.5, 0.25
--- The shares of nacks among first attempts and among retries decay over so many, or over as many as are outstanding and a
--- quarter of that: thousands of requests fail together if an endpoint is full.
local FIRST_MEMORY, RETRY_MEMORY = 32, 8
--- It is clear that messages are bad when this share of retries is nacked, and of all results this share was acked at least. Then
--- slow start begins again, as bad messages may have ended it.
local POISON_SURE, POISON_ACKS = 0.75, 0.25
--- While nacks are due to bad messages, retries get one of so many tokens at most.
local RETRY_TOKENS = 10

local function rules_new()
  local state = {}
  for name, value in pairs(FIRST_VALUES) do state[name] = value end
  return state
end

local function rules_restart(state, now_ms)
  local fresh = rules_new()
  for _, name in ipairs({'cap', 'rate', 'burst', 'bucket_tokens', 'bucket_filled_ms'}) do fresh[name] = nil end
  for name, value in pairs(fresh) do state[name] = value end
  state.round_began_ms, state.backoff_since_ms = now_ms, now_ms
end

local function is_fast(state) return state.ack_ratio > ACK_RATIO_ABOVE and state.latency_ms < LATENCY_BELOW_MS end

-- Returns the gap between two deliveries at this share of nacks (ms).
local function gap_of(share)
  if share <= GAP_ABOVE then return 0 end
  local doublings = STEEP * (math.min(share, CORNER) - CORNER)
  local gap_ms = TIME_SCALE * CORNER_GAP_MS * (2 ^ doublings - 2 ^ (STEEP * (GAP_ABOVE - CORNER)))
  if share <= CORNER then return gap_ms end
  return gap_ms * 2 ^ (FLAT * (math.min(share, LAST) - CORNER))
end

-- Returns from which share of nacks among retries on nacks are due to bad messages.
local function poison_from(state) return math.max(POISON, state.first_nacks + POISON_MARGIN) end

local function is_poisoned(state) return state.retry_nacks >= poison_from(state) end

-- Counts the round's results for the share of nacks. The gap is for the nacks that are not due to bad messages.
local function share_learn(state)
  local nacks, results = state.round_nacks, state.round_results
  if results == 0 then return end
  local expected = state.nack_share * results
  if state.nack_share <= GAP_ABOVE and nacks - expected >= SURPRISE * math.max(math.sqrt(expected), 1) then
    state.nack_share_seen = math.min(state.nack_share_seen, SHARE_SHORTEST)
  end
  state.nack_share_seen = math.min(state.nack_share_seen + SHARE_GROWTH * results, SHARE_MEMORY)
  local memory = state.nack_share_seen
  if state.nack_share > CORNER then
    memory = math.max(memory * (CORNER / state.nack_share) * (CORNER / state.nack_share), SHARE_SHORTEST)
  end
  local used = state.round_peak > 0 and math.min(state.round_size, state.round_peak) or state.round_size
  memory = math.max(memory, ROUND_MEMORY * math.min(results, used), results)
  state.nack_share = math.min(math.max(state.nack_share + (nacks - state.nack_share * results) / memory, 0), 1)
  state.gap_ms = gap_of(state.nack_share * math.min((1 - state.retry_nacks) / (1 - math.min(poison_from(state), 0.99)), 1))
end

local function round_begin(state, phase, size, now_ms)
  state.window, state.round_size, state.phase, state.round_began_ms = size, size, phase, now_ms
  state.round_results, state.round_nacks, state.round_latency_ms, state.round_peak = 0, 0, 0, 0
end

-- Returns how large a difference of nacks must be: a share of `nacks`, and more than chance makes of `expected`.
local function telling(nacks, expected) return math.max(TELLING * nacks, math.sqrt(expected)) end

local function base_set(state, latency_ms)
  state.base_size, state.base_results, state.base_nacks = state.round_size, state.round_results, state.round_nacks
  state.base_latency_ms = latency_ms
end

-- Returns the smallest size that a window of this size may shrink to.
local function smallest(state, size)
  return size >= SLOW_START_LIMIT and state.ack_ratio >= ACK_RATIO_HELD and SLOW_START_LIMIT or 1
end

local function trial_larger(state, step, now_ms)
  local size = state.base_size
  if size >= SLOW_START_LIMIT then
    if not is_fast(state) then return round_begin(state, REST, SLOW_START_LIMIT, now_ms) end
    return round_begin(state, LARGER, math.min(size + LINEAR_STEP, LARGEST_WINDOW), now_ms)
  end
  state.step = step
  if step >= size and size >= SLOW_START_AGAIN then return round_begin(state, SLOW_START, size, now_ms) end
  round_begin(state, LARGER, math.min(size + step, SLOW_START_LIMIT), now_ms)
end

local function trial_smaller(state, phase, now_ms)
  local less = phase == FEWER_NACKS and state.base_nacks or math.floor(QUARTER * state.base_size)
  round_begin(state, phase, math.max(state.base_size - less, smallest(state, state.base_size)), now_ms)
end

-- Begins the trial whose turn it is.
local function trial(state, now_ms)
  local turn = state.turn
  if turn == 2 and state.base_size < QUARTERED_FROM then turn = 0 end
  if state.base_nacks >= OVERLOADED * state.base_results then turn = 1 end
  if state.base_size > 1 and state.base_size <= smallest(state, state.base_size) then turn = 0 end
  state.turn = (turn + 1) % 3
  if turn == 1 then return trial_smaller(state, FEWER_NACKS, now_ms) end
  if turn == 2 then return trial_smaller(state, LOWER_LATENCY, now_ms) end
  trial_larger(state, math.max(math.floor(FIRST_STEP * math.sqrt(state.base_size) + 0.5), 1), now_ms)
end

-- A round that used less than half of the window explains nothing by its size.
local function after_idle_round(state, now_ms)
  share_learn(state)
  state.base_results = 0
  if state.phase == SLOW_START then
    return round_begin(state, SLOW_START, math.max(state.window, state.round_size), now_ms)
  end
  local size = (state.phase == REST or state.phase == BASE) and state.round_size or state.base_size
  -- A lane with a gap gives up the part of its window that it does not use, so that the size counts again.
  if state.gap_ms > 0 then size = math.min(size, state.round_peak + 1) end
  round_begin(state, REST, size, now_ms)
end

local function after_slow_start(state, latency_ms, slower, now_ms)
  local expected = state.nack_share * state.round_results
  -- Twice what chance makes: rounds that fail do not count for the share, which they would make too small.
  local share = is_poisoned(state) and OVERLOADED or SLOW_START_NACKS
  local tolerated = math.max(share * state.round_results, 2, 2 * math.sqrt(expected))
  local failed = state.round_nacks - expected >= tolerated
  if failed or slower then
    state.turn = slower and 2 or 1
    return round_begin(state, REST, math.min(state.round_size, state.window), now_ms)
  end
  if state.window >= SLOW_START_LIMIT then return round_begin(state, REST, state.window, now_ms) end
  share_learn(state)
  base_set(state, latency_ms)
  round_begin(state, SLOW_START, state.window, now_ms)
end

local function after_round(state, now_ms)
  local phase = state.phase
  local acks = state.round_results - state.round_nacks
  local latency_ms = acks > 0 and state.round_latency_ms / acks or 0
  if state.round_peak > 0 and 2 * state.round_peak < state.window then return after_idle_round(state, now_ms) end
  if phase ~= SLOW_START and phase ~= LARGER then share_learn(state) end
  if phase == REST then return round_begin(state, BASE, state.round_size, now_ms) end
  if phase == BASE then
    base_set(state, latency_ms)
    return trial(state, now_ms)
  end
  local is_known = latency_ms > 0 and state.base_latency_ms > 0
  local slower = is_known
    and latency_ms > math.max(SLOWER * state.base_latency_ms, state.base_latency_ms + SLOWER_MS)
  if phase == SLOW_START then return after_slow_start(state, latency_ms, slower, now_ms) end
  local expected = state.round_nacks
  if state.base_results > 0 then expected = state.base_nacks / state.base_results * state.round_results end
  if phase == LARGER then
    local surplus = state.round_nacks - math.max(expected, state.nack_share * state.round_results)
    local failed = surplus >= telling(state.round_size - state.base_size, expected)
    if failed or state.round_nacks >= OVERLOADED * state.round_results or slower then
      return round_begin(state, REST, state.base_size, now_ms)
    end
    -- The latency goes on being compared with that of the first base.
    base_set(state, state.base_latency_ms)
    return trial_larger(state, 2 * state.step, now_ms)
  end
  local kept, again
  if phase == FEWER_NACKS then
    kept = state.base_nacks > 0 and expected - state.round_nacks >= telling(expected, expected)
    again = state.round_nacks > 0 and state.round_size > 1
  else
    kept = is_known
      and latency_ms < math.min(FASTER * state.base_latency_ms, state.base_latency_ms - FASTER_MS)
    again = state.round_size >= QUARTERED_FROM
  end
  if not kept then return round_begin(state, REST, state.base_size, now_ms) end
  base_set(state, latency_ms)
  if again then return trial_smaller(state, phase, now_ms) end
  round_begin(state, REST, state.round_size, now_ms)
end

local function round_is_over(state)
  local used = state.round_peak > 0 and math.min(state.round_size, state.round_peak) or state.round_size
  local full = math.max(used, SHORTEST_ROUND)
  if state.phase == REST then
    return state.round_results >= REST_ROUNDS * full or state.round_nacks >= math.max(REST_NACKS * full, 2)
  end
  if state.round_results >= full then return true end
  if state.phase ~= LARGER or state.base_results == 0 then return false end
  -- A larger window that can only fail has failed.
  local expected = state.base_nacks / state.base_results * full
  local surplus = state.round_nacks - math.max(expected, state.nack_share * full)
  return surplus >= telling(state.round_size - state.base_size, expected)
end

local function means_result(state, acked, latency_ms)
  state.results_seen = math.min(state.results_seen + 1, math.max(MEMORY, state.window))
  state.ack_ratio = state.ack_ratio + ((acked and 1 or 0) - state.ack_ratio) / state.results_seen
  state.latency_ms = state.latency_ms + (latency_ms - state.latency_ms) / state.results_seen
end

local function window_result(state, acked, latency_ms, now_ms)
  local counts = now_ms - latency_ms >= state.round_began_ms
  if not acked then
    -- A nack keeps its token until the round is over, unless its request began before the round.
    if counts then state.window = math.max(state.window - 1, smallest(state, state.window)) end
  elseif state.phase == SLOW_START and state.window < SLOW_START_LIMIT
    and (state.window < UNPROVEN_LIMIT or state.round_peak == 0 or 2 * state.round_peak >= state.window) then
    state.window = math.min(state.window + 1, SLOW_START_LIMIT)
  end
  if counts then
    state.round_results = state.round_results + 1
    if acked then
      state.round_latency_ms = state.round_latency_ms + latency_ms
    else
      state.round_nacks = state.round_nacks + 1
    end
  end
  if state.window > SLOW_START_LIMIT and not is_fast(state) then
    return round_begin(state, REST, SLOW_START_LIMIT, now_ms)
  end
  if counts and round_is_over(state) then after_round(state, now_ms) end
end

-- Returns whether a pause began.
local function backoff_result(state, acked, latency_ms, now_ms, dice, repeated)
  local began_ms = now_ms - latency_ms
  if acked then
    if began_ms >= state.resume_ms then state.backoff_level = 0 end
    if began_ms >= state.backoff_since_ms then state.acked_ms = now_ms end
    return false
  end
  if began_ms < state.backoff_since_ms then return false end
  local raise = not repeated and 1 or state.poisoned == 1 and POISONED or REPEATED
  state.backoff_level = math.min(state.backoff_level + raise, TOP_LEVEL)
  state.backoff_since_ms = now_ms
  if state.backoff_level <= FREE_LEVEL then return false end
  local longest = math.min(SHORTEST_PAUSE_MS * 2 ^ (state.backoff_level - FREE_LEVEL), LONGEST_PAUSE_MS)
  state.resume_ms = now_ms + TIME_SCALE * math.max(longest * (0.5 + 0.5 * dice), SHORTEST_PAUSE_MS)
  state.backoff_since_ms = state.resume_ms
  return true
end

-- Messages a second and how many at once: the subscription's own limit, or the gap that its nacks make, if slower.
local function send_limit(state)
  if state.gap_ms <= 0 then return state.rate, state.burst end
  local rate = 1000 / state.gap_ms
  if state.rate <= 0 then return rate, rate * BURST_SECONDS end
  rate = math.min(rate, state.rate)
  return rate, math.min(rate * BURST_SECONDS, state.burst > 0 and state.burst or state.rate)
end

-- Refills the bucket; returns its rate, 0 for no limit.
local function bucket_fill(state, now_ms)
  local rate, burst = send_limit(state)
  if rate <= 0 then return 0 end
  local depth = math.max(burst > 0 and burst or rate, 1)
  local gained = math.max(now_ms - state.bucket_filled_ms, 0) * rate / 1000
  -- A new bucket is full. A clock that went back refills nothing, and the bucket goes on from there.
  state.bucket_tokens, state.bucket_filled_ms = math.min(state.bucket_tokens + gained, depth), now_ms
  return rate
end

-- Learns from a retry whether nacks are due to bad messages.
local function retry_result(state, acked, now_ms)
  state.retry_nacks = state.retry_nacks + ((acked and 0 or 1) - state.retry_nacks) / math.max(RETRY_MEMORY, QUARTER * state.outstanding)
  if not is_poisoned(state) then
    state.poisoned = 0
  elseif state.poisoned == 0 and state.retry_nacks >= POISON_SURE and state.ack_ratio >= POISON_ACKS then
    state.poisoned = 1
    if state.window < SLOW_START_LIMIT then
      round_begin(state, SLOW_START, math.max(state.window, FIRST_VALUES.window), now_ms)
    end
  end
end

local function rules_pass(state) state.retry_credit = RETRY_TOKENS - 1 end

-- A result that starts a pause also restarts the window.
local function rules_result(state, acked, latency_ms, now_ms, dice, repeated)
  local was_backing_off = state.backoff_level > FREE_LEVEL
  means_result(state, acked, latency_ms)
  if backoff_result(state, acked, latency_ms, now_ms, dice, repeated) then
    if not was_backing_off then
      share_learn(state)
      rules_pass(state)
    end
    state.retry_nacks, state.poisoned = POISON, 0
    state.base_size, state.base_results, state.base_nacks, state.base_latency_ms = 0, 0, 0, 0
    round_begin(state, SLOW_START, 1, state.resume_ms)
    return
  end
  if not repeated then
    state.first_nacks = state.first_nacks + ((acked and 0 or 1) - state.first_nacks) / math.max(FIRST_MEMORY, state.outstanding)
  elseif not was_backing_off then
    retry_result(state, acked, now_ms)
  end
  if acked or not (repeated and is_poisoned(state)) then window_result(state, acked, latency_ms, now_ms) end
end

local function rules_window(state)
  if state.backoff_level > FREE_LEVEL then return 1 end
  if state.cap > 0 then return math.floor(math.min(state.window, state.cap)) end
  return math.floor(state.window)
end

local function rules_free(state, now_ms)
  if now_ms < state.resume_ms then return 0 end
  local free = math.max(rules_window(state) - state.outstanding, 0)
  if bucket_fill(state, now_ms) > 0 then free = math.min(free, math.floor(state.bucket_tokens)) end
  return free
end

local function rules_retries(state, free)
  if state.poisoned == 0 and state.backoff_level <= FREE_LEVEL then return free, free end
  local tokens = math.max(math.floor(rules_window(state) / RETRY_TOKENS), 1)
  local most = math.max(math.min(tokens - math.min(state.retries_out, state.outstanding), free), 0)
  return most, math.min(most, math.floor(state.retry_credit / (RETRY_TOKENS - 1)))
end

local function rules_spend(state, now_ms, count, retries)
  -- In backoff a retry and another message take turns, as either may be the bad one.
  local gained = (count - retries) * (state.backoff_level > FREE_LEVEL and RETRY_TOKENS - 1 or 1)
  local spent = retries * (RETRY_TOKENS - 1)
  local most = math.max(rules_window(state), RETRY_TOKENS - 1)
  state.retry_credit = math.min(math.max(state.retry_credit - spent, 0) + gained, most)
  state.retries_out = math.min(state.retries_out + retries, state.outstanding)
  if bucket_fill(state, now_ms) > 0 then state.bucket_tokens = state.bucket_tokens - count end
  state.round_peak = math.max(state.round_peak, state.outstanding)
end

local function rules_return(state, repeated)
  state.outstanding = state.outstanding - 1
  if repeated then state.retries_out = math.max(state.retries_out - 1, 0) end
end

local function rules_bucket_wait(state, now_ms)
  local rate = bucket_fill(state, now_ms)
  if rate <= 0 or state.bucket_tokens >= 1 then return nil end
  return state.bucket_filled_ms + math.max(1 - state.bucket_tokens, 0) * 1000 / rate
end

local function rules_countdown(attempt, minimum_ms, maximum_ms, dice)
  local minimum = math.min(minimum_ms, maximum_ms)
  local doublings = math.min(math.max(attempt - 1, 0), COUNTDOWN_DOUBLINGS)
  local middle = math.min(math.max(minimum, COUNTDOWN_MS) * 2 ^ doublings, maximum_ms)
  local lowest = math.max(minimum, middle * (1 - COUNTDOWN_JITTER))
  local highest = math.min(maximum_ms, middle * (1 + COUNTDOWN_JITTER))
  return TIME_SCALE * (lowest + (highest - lowest) * dice)
end

local function rules_pause(state, now_ms) return math.max(state.resume_ms - now_ms, state.gap_ms, 0) end
