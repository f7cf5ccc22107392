-- How Redis calls the verbs: each file of a verb is the body of a function of this library.

--- These bring more into Redis. The others may run while it is full, as most of them make room.
local BRINGS = {offer=true, page=true}

-- The library's names last, so those that belong to one call are set here.
local function register(verb, reply)
  local function call(keys, args)
    PREFIX = string.match(keys[#keys], '^ph[^:]*:')
    QUEUES = (PREFIX == 'ph:' and '' or PREFIX) .. 'deliveries.'
    over_budget, rung, tells_wake, tells_queue = nil, {}, false, false
    if ON_CLUSTER then claim_cell() end
    if CELLS == 1 then return reply(keys, args) end
    -- A cell among others can't ring: the caller does it (scripts.py).
    return {reply(keys, args) or false, rung_regions()}
  end
  local flags = BRINGS[verb] and {} or {'allow-oom'}
  redis.register_function{function_name=verb .. '_' .. DIGEST, callback=call, flags=flags}
end
