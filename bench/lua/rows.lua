-- Results of as many rows as asked for, whole rows of sysbench's tables.

require("oltp_common")

sysbench.cmdline.options.rows = {"Rows of each result", 100}

local reads = {}

-- Without prepared statements sysbench sends their text.
function prepare_statements()
   for number = 1, sysbench.opt.tables do
      reads[number] = con:prepare(string.format("SELECT id, k, c, pad FROM sbtest%d ORDER BY id LIMIT %d",
         number, sysbench.opt.rows))
   end
end

function event()
   reads[sysbench.rand.uniform(1, sysbench.opt.tables)]:execute()
end

function thread_done()
   for _, read in ipairs(reads) do
      read:close()
   end
   con:disconnect()
end
