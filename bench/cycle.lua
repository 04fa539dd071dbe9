-- Acquire and release, over and over: the load of one lock client, for wrk.
--
-- wrk's callbacks belong to a thread and don't tell the connection. So wrk runs with one connection per thread, and a
-- thread is a client: its own Lua state, its own connection, its own lock key.
--
-- Arguments: FILE FIELD WARMUP SECONDS. Line n of FILE is the plan of client n, four parts with tabs between them: path
-- and body of acquire, path and body of release. FIELD names the member of acquire's answer that %TOKEN% in the
-- release stands for. When its time is up, and its lock released, a client prints one line of JSON and stops.

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

local acquire, release_path, release_body, token_pattern, warmup_us, window_us
local release -- the next request, when the lock is held
local asked_us -- when the request that has no answer yet was sent
local counting_from_us, counting -- the window, once the first answer has come
local cycles, errors, first_error = 0, 0, ""
local latencies = { acquire = {}, release = {} } -- by call: how often each length in microseconds was seen

function init(args)
  local n = 0
  for line in io.lines(args[1]) do
    n = n + 1
    if n == client then
      local path, body
      path, body, release_path, release_body = line:match("^([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)$")
      acquire = wrk.format("POST", path, nil, body)
    end
  end
  token_pattern = '"' .. args[2] .. '"%s*:%s*"([^"]+)"'
  warmup_us = tonumber(args[3]) * 1000000
  window_us = tonumber(args[4]) * 1000000
end

local function failed(what)
  errors = errors + 1
  if first_error == "" then
    first_error = what:sub(1, 300):gsub('[%c"\\\128-\255]', "'")
  end
end

-- May be called twice for one answer (wrk tries the script before the run; a cut connection): moves nothing on.
function request()
  if asked_us and counting then
    failed("the connection was cut before the answer")
  end
  asked_us = now_us()
  return release or acquire
end

local function took(call, now)
  if counting then
    local length = now - asked_us
    latencies[call][length] = (latencies[call][length] or 0) + 1
  end
end

local function as_json(histogram)
  local parts = {}
  for length, count in pairs(histogram) do
    parts[#parts + 1] = ('"%d": %d'):format(length, count)
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function report(elapsed_us)
  local line = '\n{"cycles": %d, "elapsedMicros": %d, "errors": %d, "firstError": "%s", "acquire": %s, "release": %s}\n'
  local acquires, releases = as_json(latencies.acquire), as_json(latencies.release)
  io.write(line:format(cycles, elapsed_us, errors, first_error, acquires, releases)) -- one write: lines don't mix
  io.flush()
  wrk.thread:stop()
end

-- A cycle is over, so the lock is free: the only place where a client may start to count, or stop.
local function between_cycles(now)
  if not counting_from_us then
    counting_from_us = now + warmup_us
  elseif not counting and now >= counting_from_us then
    counting, counting_from_us = true, now
  elseif counting and now >= counting_from_us + window_us then
    report(now - counting_from_us)
  end
end

function response(status, headers, body)
  local now = now_us()
  if not release then
    local token = status == 200 and body:match(token_pattern)
    if token then
      local function fill(text)
        return (text:gsub("%%TOKEN%%", function() return token end))
      end
      release = wrk.format("POST", fill(release_path), nil, fill(release_body))
      took("acquire", now)
      asked_us = nil
      return
    end
    failed("acquire: " .. status .. " " .. body)
  else
    release = nil
    if status == 200 then
      took("release", now)
      cycles = cycles + (counting and 1 or 0)
    else
      failed("release: " .. status .. " " .. body)
    end
  end
  asked_us = nil
  between_cycles(now)
end
