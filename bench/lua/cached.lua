-- Reads by primary key of the first rows of one table, and a share of writes by primary key. What a
-- write changes is the column that is read.
--
-- --hot-rows   how many rows
-- --writes     percent of the events that are UPDATEs; with 100 each client has rows of its own
-- --rows-each  rows of each UPDATE
-- --walk       each client reads its share of the rows in turn, so that all are read equally often
-- --distinct   no statement is ever sent twice
--
-- Which rows is drawn as --rand-type says.

require("oltp_common")

sysbench.cmdline.options.hot_rows = {"Rows that are read and written", 10000}
sysbench.cmdline.options.writes = {"Percent of events that write", 0}
sysbench.cmdline.options.rows_each = {"Rows of each UPDATE", 1}
sysbench.cmdline.options.walk = {"Read all rows in turn", false}
sysbench.cmdline.options.distinct = {"Send no statement twice", false}

local read, write, id, set = nil, nil, nil, {}
local turn = 0
-- Clients of several runs before the same servers, and their statements, are told apart.
local salt = os.time() % 1000000

function prepare_statements()
   local kind = sysbench.sql.type
   read = con:prepare("SELECT c FROM sbtest1 WHERE id=?")
   id = read:bind_create(kind.INT)
   read:bind_param(id)
   local where = sysbench.opt.rows_each > 1 and "id BETWEEN ? AND ?" or "id=?"
   write = con:prepare("UPDATE sbtest1 SET c=? WHERE " .. where)
   set[1] = write:bind_create(kind.CHAR, 120)
   set[2] = write:bind_create(kind.INT)
   if sysbench.opt.rows_each > 1 then
      set[3] = write:bind_create(kind.INT)
   end
   write:bind_param(unpack(set))
end

-- A row of the client's own share.
local function own()
   local clients, each = sysbench.opt.threads, sysbench.opt.rows_each
   local share = math.ceil(sysbench.opt.hot_rows / clients / each)
   return (sysbench.tid * share + turn % share) * each % sysbench.opt.hot_rows + 1
end

local function update()
   local first = own()
   if sysbench.opt.writes < 100 then
      first = sysbench.rand.default(1, sysbench.opt.hot_rows)
   end
   set[1]:set_rand_str("###########-###########-###########-###########-###########-" ..
      "###########-###########-###########-###########-###########")
   set[2]:set(first)
   if sysbench.opt.rows_each > 1 then
      set[3]:set(first + sysbench.opt.rows_each - 1)
   end
   write:execute()
end

function event()
   turn = turn + 1
   if sysbench.opt.distinct then
      local row = sysbench.rand.default(1, sysbench.opt.hot_rows)
      con:query(string.format("SELECT c, %d%03d%09d FROM sbtest1 WHERE id=%d", salt, sysbench.tid, turn, row))
   elseif sysbench.opt.writes > 0 and sysbench.rand.uniform(1, 100) <= sysbench.opt.writes then
      update()
   else
      id:set(sysbench.opt.walk and own() or sysbench.rand.default(1, sysbench.opt.hot_rows))
      read:execute()
   end
end

function thread_done()
   read:close()
   write:close()
   con:disconnect()
end
