-- One write, over and over: the load of one client, for wrk. As in `cycle.lua`, a thread is a client.
--
-- Arguments: FILE WARMUP SECONDS. Line n of FILE is the plan of client n, with tabs between its parts: method, path,
-- body, and headers as NAME, VALUE, NAME, VALUE. %N% in the body stands for a number that rises with each write. When
-- its time is up, a client prints one line of JSON and stops.

local ffi = require("ffi")
ffi.cdef([[
typedef struct { long sec; long nsec; } bench_timespec;
int clock_gettime(int clock, bench_timespec *now);
]])
local MONOTONIC = jit.os == "OSX" and 6 or 1
local timespec = ffi.new("bench_timespec")

local function now_us()
  ffi.C.clock_gettime(MONOTONIC, timespec)
  return tonumber(timespec.sec) * 1000000 + math.floor(tonumber(timespec.nsec) / 1000)
end

-- --- in wrk's main thread ---

local clients = 0

function setup(thread)
  clients = clients + 1
  thread:set("client", clients)
end

function done(summary)
  local errors = summary.errors
  local line = '\n{"connect": %d, "read": %d, "write": %d, "timeout": %d}\n'
  io.write(line:format(errors.connect, errors.read, errors.write, errors.timeout))
end

-- --- in the thread of a client ---

local method, path, headers, before, after, warmup_us, window_us
local number = 0
local asked_us
local counting_from_us, counting
local cycles, errors, first_error = 0, 0, ""
local latencies = {}

function init(args)
  local n = 0
  for line in io.lines(args[1]) do
    n = n + 1
    if n == client then
      local parts = {}
      for part in (line .. "\t"):gmatch("([^\t]*)\t") do
        parts[#parts + 1] = part
      end
      method, path, headers = parts[1], parts[2], {}
      before, after = parts[3]:match("^(.*)%%N%%(.*)$")
      for at = 4, #parts - 1, 2 do
        headers[parts[at]] = parts[at + 1]
      end
    end
  end
  warmup_us = tonumber(args[2]) * 1000000
  window_us = tonumber(args[3]) * 1000000
end

function request()
  number = number + 1
  asked_us = now_us()
  return wrk.format(method, path, headers, before .. number .. after)
end

local function report(elapsed_us)
  local parts = {}
  for length, count in pairs(latencies) do
    parts[#parts + 1] = ('"%d": %d'):format(length, count)
  end
  local line = '\n{"cycles": %d, "elapsedMicros": %d, "errors": %d, "firstError": "%s", "write": {%s}}\n'
  io.write(line:format(cycles, elapsed_us, errors, first_error, table.concat(parts, ", ")))
  io.flush()
  wrk.thread:stop()
end

function response(status, _, body)
  local now = now_us()
  if status ~= 200 and status ~= 204 then
    errors = errors + 1
    if first_error == "" then
      first_error = (status .. " " .. body):sub(1, 300):gsub('[%c"\\\128-\255]', "'")
    end
  elseif counting then
    cycles = cycles + 1
    local length = now - asked_us
    latencies[length] = (latencies[length] or 0) + 1
  end
  if not counting_from_us then
    counting_from_us = now + warmup_us
  elseif not counting and now >= counting_from_us then
    counting, counting_from_us = true, now
  elseif counting and now >= counting_from_us + window_us then
    report(now - counting_from_us)
  end
end
