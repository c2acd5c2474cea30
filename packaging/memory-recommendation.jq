# From `tidepool advise --format=json` to a memory limit for the container or the machine, in bytes.
#
#   target   the least limit that costs hardly any reads: at most `cost` of the time spent on reads, or
#            a read a second
#   lower    the least limit that costs at most `most` of it: below that queries become slow
#   upper    the limit from which on more memory saves hardly any reads
#
# Arguments: --argjson cost 0.001 --argjson most 0.1

# What stays free below a limit, as the engine's governor has it: a twentieth, 24 MiB to 1 GiB.
def with_headroom: . as $used
  | [$used * 20 / 19, $used + 24 * 1048576] | max
  | [., $used + 1073741824] | min | floor;

.curve as $curve
| if ($curve | length) == 0 then error("no curve: the server has not read anything yet, or PROCESS is missing") else . end
| if .facts.machine == null then error("run this on the server's machine: its memory must be seen") else . end
| ($curve | map(select(.change_bytes == 0)) | first) as $now
| ($curve | last) as $largest
# What is used beside the pool below the tightest limit.
| (.facts.machine.limit_bytes - .facts.machine.room_bytes - .facts.tidepool.data_bytes | [., 0] | max) as $beside
| ($now.reads_per_s) as $reads
| def affordable($share): [$reads * $share, 1] | max;
  # The least size with at most this many reads a second: on a straight line between two points of the
  # curve, which is never too small, since each MiB saves less than the one before.
  def size_for($most_reads):
    ($curve | map(.reads_per_s <= $most_reads) | index(true)) as $at
    | $curve[$at] as $fits
    | if $at == 0 then $fits.size_bytes
      else $curve[$at - 1] as $below
        | $below.size_bytes + ($fits.size_bytes - $below.size_bytes)
          * ($below.reads_per_s - $most_reads) / ($below.reads_per_s - $fits.reads_per_s)
      end;
  def limit_for($most_reads): size_for($most_reads) + $beside | with_headroom;
  {
    target: limit_for($reads + affordable($cost)),
    lower: limit_for($reads + affordable($most)),
    upper: limit_for($largest.reads_per_s + affordable($cost))
  }
