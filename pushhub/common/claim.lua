-- Claims a Redis for PushHub at each new connection: EVAL claim.lua 1 ph:primary
--
-- ph:primary has the run id of the server that wrote the data. If that is another one, this server was its replica, or has
-- restarted with what it had saved, and may lack the last writes: an ordered lane as it was a moment ago would send messages
-- again behind later ones of their key. So what PushHub has there is deleted, as if Redis had been wiped, before any other
-- command. A replica refuses this, so that nobody takes it for the primary.

local id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local owner = redis.call('GET', KEYS[1])
if owner == id then return 0 end
if owner then
  for _, pattern in ipairs({'ph:*', 'ph{*', 'deliveries.*'}) do
    local cursor = '0'
    repeat
      local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', 1000)
      cursor = page[1]
      for _, key in ipairs(page[2]) do redis.call('UNLINK', key) end
    until cursor == '0'
  end
end
redis.call('SET', KEYS[1], id)
return 1
