-- acknowledge(lane; generation, id, times leased, ...)
--   -> {ids that the database may forget; ids whose ack changes nothing: it came too late, or came before}
--
-- Takes acks of an ordered lane, before the database does. The ack of a delivery is kept until all earlier ones of its key
-- that are leased are acknowledged: should one of them be delivered again, so are the later ones. An ack is too late when
-- the delivery already waits behind an earlier one of its key, was left to the database since its lease, was leased again, or was
-- leased in another generation: then earlier ones of its key may be delivered again.
--   KEYS[1]  the lane   ARGV[1]  the generation in which they were leased
--   ARGV[2..]  delivery, and how often it had been leased when it was handed out, or 0 for an ack of whichever lease it has
-- Owns every key of the lane (common.lua).
local key = KEYS[1]
local now = now_ms()
local ids, times = {}, {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  times[ARGV[i]] = ARGV[i + 1]
end
if not is_of_generation(key, ARGV[1]) then return {{}, ids} end
local owed_no_more, vain, acknowledged, scores, orderings = {}, {}, {}, {}, {}

-- Takes the ack of a delivery with an ordering key.
local function take_ack(id, is_newest, where, ordering)
  local holds_key = redis.call('HGET', key .. ':k', ordering) == id
  if where == ACKNOWLEDGED then
    vain[#vain + 1] = id
    orderings[ordering] = true
  elseif where == LEASED and not holds_key then
    if not is_newest then
      vain[#vain + 1] = id
      return
    end
    acknowledged[#acknowledged + 1] = id
    scores[#scores + 1] = now + ACKNOWLEDGED_MS
    scores[#scores + 1] = id
    orderings[ordering] = true
  elseif where == PARKED or where == RETRYING and redis.call('EXISTS', key .. ':u:' .. ordering) == 1 then
    vain[#vain + 1] = id
  else
    owed_no_more[#owed_no_more + 1] = id
  end
end

each_chunk(ids, function(part)
  local where = redis.call('HMGET', key .. ':d', unpack(part))
  local newest = redis.call('HMGET', key .. ':a', unpack(part))
  local keys = redis.call('HMGET', key .. ':o', unpack(part))
  for i, id in ipairs(part) do
    if keys[i] then
      take_ack(id, times[id] == '0' or newest[i] == times[id], where[i], keys[i])
    elseif not where[i] and newest[i] and times[id] ~= '0' then
      vain[#vain + 1] = id
    else
      owed_no_more[#owed_no_more + 1] = id
    end
  end
end)
each_chunk(acknowledged, function(part) set_places(key, part, ACKNOWLEDGED) end)
each_chunk(scores, function(part) redis.call('ZADD', key .. ':l', unpack(part)) end)

--- Deliveries of a key that are looked at together.
local STEP = 16
local is_acknowledged_now = {}
for _, id in ipairs(acknowledged) do is_acknowledged_now[id] = true end
for ordering in pairs(orderings) do
  local place, is_first = 0, true
  while is_first do
    local leased = redis.call('LRANGE', key .. ':u:' .. ordering, place, place + STEP - 1)
    for _, id in ipairs(leased) do
      is_first = is_first and (is_acknowledged_now[id] or redis.call('HGET', key .. ':d', id) == ACKNOWLEDGED)
      if is_first then owed_no_more[#owed_no_more + 1] = id end
    end
    if #leased < STEP then break end
    place = place + STEP
  end
end
return {owed_no_more, vain}
