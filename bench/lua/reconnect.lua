-- sysbench's read-only load with a new connection after every so many events, as clients
-- without a pool of their own have. sysbench's own con:reconnect() crashes with today's client
-- library, so a connection is closed and another opened; what that comes to is printed at the
-- end, one line a thread, because sysbench cannot count it.

require("oltp_read_only")

sysbench.cmdline.options.reconnect = {"Connect anew after this many events", 10}

local run_event, stop_thread = event, thread_done
local events, reconnects = 0, 0

function event()
   run_event()
   events = events + 1
   if events % sysbench.opt.reconnect == 0 then
      close_statements()
      con:disconnect()
      con = drv:connect()
      prepare_statements()
      reconnects = reconnects + 1
   end
end

function thread_done()
   stop_thread()
   print("planned reconnects: " .. reconnects)
end
