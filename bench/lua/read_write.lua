-- sysbench's balanced read-write, fit for running without transactions.
--
-- The stock script deletes a random row and inserts it again. Without a transaction around
-- both, two clients that drew the same row insert it twice, and the run ends with error 1062.
-- Here each client draws from rows of its own for this pair; every other statement is stock.

require("oltp_read_write")

function execute_delete_inserts()
   local clients = sysbench.opt.threads
   local rows_each = math.floor(sysbench.opt.table_size / clients)
   local table_num = sysbench.rand.uniform(1, sysbench.opt.tables)
   for _ = 1, sysbench.opt.delete_inserts do
      local id = sysbench.rand.uniform(0, rows_each - 1) * clients + sysbench.tid + 1
      local deletes, inserts = param[table_num].deletes, param[table_num].inserts
      deletes[1]:set(id)
      inserts[1]:set(id)
      inserts[2]:set(sysbench.rand.uniform(1, sysbench.opt.table_size))
      inserts[3]:set_rand_str("###########-###########-###########-" ..
         "###########-###########-###########-" ..
         "###########-###########-###########-###########")
      inserts[4]:set_rand_str("###########-###########-###########-###########-###########")
      stmt[table_num].deletes:execute()
      stmt[table_num].inserts:execute()
   end
end
