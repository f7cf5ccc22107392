-- tokens(lane) -> the deliveries that hold a token
--
--   KEYS[1]  the lane. Changes nothing.
local tokens = {}
local places = redis.call('HGETALL', KEYS[1] .. ':d')
for i = 1, #places, 2 do
  if places[i + 1] == OUTSTANDING then tokens[#tokens + 1] = places[i] end
end
return tokens
