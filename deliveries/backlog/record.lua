-- A worker's record of what it has fetched, shared by the verbs that read it or put its messages back.
--   ph:work:<worker>  hash    batch -> its messages (msgpack)
--                             "<batch>-" -> what the worker has given back of it, likewise: "<message>.<subscription>.<region>" ->
--                             true. An older version reads it as a batch without messages.
-- A batch leaves the record when all of it is settled. What was given back may be with another worker, or wait, while the
-- rest of its batch is still pushed. The workers that have a record are in ph:workers.
--   ph:stock:<worker> set     the attempts that a stock worker has taken and not ended:
--                             "<message>.<subscription>.<region>#<attempt>". The messages are in kombu's own record, which can't
--                             tell the workers apart. When the worker is dead, the audit finds that nobody holds their tokens.

local function attempts_of(worker) return PREFIX .. 'stock:' .. worker end
local function record_of(worker) return PREFIX .. 'work:' .. worker end

-- Notes that a worker gives deliveries of a lane back. `batch` is "<worker>/<batch>", "<worker>/#<attempt>" for a stock worker, or ""
-- for deliveries without a record. Returns which of them the worker had: after a lost reply, it says the same again.
local function give_back(batch, lane, ids)
  local worker, name = string.match(batch, '^(.+)/(.+)$')
  local of_lane, had = '.' .. string.gsub(lane, ':', '.', 1), {}
  if not worker then
    for _, id in ipairs(ids) do had[id] = true end
  elseif string.sub(name, 1, 1) == '#' then
    for _, id in ipairs(ids) do had[id] = redis.call('SREM', attempts_of(worker), id .. of_lane .. name) == 1 end
  elseif redis.call('HEXISTS', record_of(worker), name) == 1 then
    local packed = redis.call('HGET', record_of(worker), name .. '-')
    local given_back = packed and cmsgpack.unpack(packed) or {}
    for _, id in ipairs(ids) do
      if not given_back[id .. of_lane] then had[id], given_back[id .. of_lane] = true, true end
    end
    redis.call('HSET', record_of(worker), name .. '-', cmsgpack.pack(given_back))
  end
  return had
end

-- Returns the messages of each batch of a worker that it has not given back.
local function batches_of(worker)
  local fields, record, batches = redis.call('HGETALL', record_of(worker)), {}, {}
  for i = 1, #fields, 2 do record[fields[i]] = cmsgpack.unpack(fields[i + 1]) end
  for batch, messages in pairs(record) do
    if string.sub(batch, -1) ~= '-' then
      local is_given_back = record[batch .. '-'] or {}
      batches[batch] = {}
      for _, message in ipairs(messages) do
        local identity = string.match(message, '^{"headers":{"id":"([^"]+)"')
        if not identity or not is_given_back[identity] then table.insert(batches[batch], message) end
      end
    end
  end
  return batches
end

local function forget_batch(worker, batch) redis.call('HDEL', record_of(worker), batch, batch .. '-') end

-- Takes up to `count` messages from a queue and `low_count` of the lowest priority, records them as a batch of a worker, and
-- returns them; the same again for a call that is repeated after a lost reply. A worker whose lease has lapsed gets none (beat.lua);
-- `lease` is nil for a worker that needs none.
local function take_batch(queue, region, work, batch, count, low_count, lease, now)
  local taken = redis.call('HGET', work, batch)
  if taken then return cmsgpack.unpack(taken) end
  if lease and not redis.call('ZSCORE', PREFIX .. 'leases', lease) then return {} end
  local low = low_of(queue)
  local messages = count > 0 and redis.call('RPOP', queue, count) or {}
  local others = low_count > 0 and redis.call('RPOP', low, low_count) or {}
  for _, message in ipairs(others) do messages[#messages + 1] = message end
  if #messages > 0 then
    redis.call('HSET', work, batch, cmsgpack.pack(messages))
    -- A worker that was declared dead while Redis stood still is listed again: others find what it holds.
    redis.call('ZADD', PREFIX .. 'workers', 'NX', now, string.sub(work, #record_of('') + 1))
  end
  -- Other workers sleep on the bell; wake one of them for the rest of the queue.
  if redis.call('EXISTS', queue, low) > 0 then ring(region) end
  return messages
end

-- Puts messages that a worker has fetched back into the queue, without those that were settled and those of another
-- generation of their lane. Returns how many.
local function requeue(messages)
  local count = 0
  for _, message in ipairs(messages) do
    local id, subscription, region, generation = task_of(message)
    local key = id and PREFIX .. subscription .. ':' .. region
    if id and redis.call('HGET', key .. ':d', id) == OUTSTANDING and is_of_generation(key, generation) then
      redis.call('RPUSH', QUEUES .. region, message)
      ring(region)
      count = count + 1
    end
  end
  return count
end
