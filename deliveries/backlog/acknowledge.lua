-- acknowledge(lane; id, times leased, ...) -> {ids that the database may forget; ids whose ack came too late}
--
-- Takes acks of an ordered lane, before the database does. The ack of a delivery is kept until all earlier ones of its key
-- that are leased are acknowledged: should one of them be delivered again, so are the later ones. An ack is too late when
-- the delivery already waits behind an earlier one of its key, or was leased again.
--   KEYS[1]  the lane   ARGV  delivery, and how often it had been leased when it was handed out
-- Owns every key of the lane (common.lua).
local key = PREFIX .. KEYS[1]
local now = now_ms()
local owed_no_more, late, orderings = {}, {}, {}
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  local ordering = redis.call('HGET', key .. ':o', id)
  local where = redis.call('HGET', key .. ':d', id)
  if not ordering then
    owed_no_more[#owed_no_more + 1] = id
  elseif where == 'a' then
    orderings[ordering] = true
  elseif where == 'l' and redis.call('LPOS', key .. ':u:' .. ordering, id) then
    if redis.call('HGET', key .. ':a', id) == ARGV[i + 1] then
      redis.call('HSET', key .. ':d', id, 'a')
      redis.call('ZADD', key .. ':l', now + ACKNOWLEDGED_MS, id)
      orderings[ordering] = true
    else
      late[#late + 1] = id
    end
  elseif where == 'p' or where == 'r' and redis.call('EXISTS', key .. ':u:' .. ordering) == 1 then
    late[#late + 1] = id
  else
    owed_no_more[#owed_no_more + 1] = id
  end
end

for ordering in pairs(orderings) do
  local place = 0
  while true do
    local id = redis.call('LINDEX', key .. ':u:' .. ordering, place)
    if not id or redis.call('HGET', key .. ':d', id) ~= 'a' then break end
    owed_no_more[#owed_no_more + 1] = id
    place = place + 1
  end
end
return {owed_no_more, late}
