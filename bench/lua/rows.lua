-- Results of as many rows as asked for, whole rows of sysbench's tables.

require("oltp_common")

sysbench.cmdline.options.rows = {"Rows of each result", 100}

function prepare_statements()
end

function event()
   con:query(string.format("SELECT id, k, c, pad FROM sbtest%d ORDER BY id LIMIT %d",
      sysbench.rand.uniform(1, sysbench.opt.tables), sysbench.opt.rows))
end
