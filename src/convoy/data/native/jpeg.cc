// A part of a JPEG, brought to size: no more of the image is decoded than that takes.
//
// Rows above the part are skipped, those below it are never reached, and of its rows only the blocks
// are transformed that are inside of it. Each row that comes out goes straight into the result, so
// the decoded image is never held as a whole.

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

// After <cstdio>, which it needs and does not include.
#include <jpeglib.h>

#if defined(__GNUC__) && !defined(__clang__)
#define CONVOY_VECTORISED __attribute__((target_clones("avx2", "default")))
#else
#define CONVOY_VECTORISED
#endif

namespace {

constexpr int kChannels = 3;
// Weights of pixels are whole numbers of 256ths.
constexpr int kBits = 8;
constexpr int kOne = 1 << kBits;

struct Errors {
  jpeg_error_mgr manager;
  jmp_buf escape;
  char* message;
};

// libjpeg's own way out would end the process.
void Fail(j_common_ptr info) {
  auto* errors = reinterpret_cast<Errors*>(info->err);
  info->err->format_message(info, errors->message);
  longjmp(errors->escape, 1);
}

void SayNothing(j_common_ptr, int) {}

// Between which two of `count` pixels a pixel of the result lies, and how near to the second.
struct Between {
  int first, second, weight;
};

Between Find(int index, int count, int wanted) {
  const double place = (index + 0.5) * count / wanted - 0.5;
  if (place <= 0) return {0, 0, 0};
  const int first = static_cast<int>(place);
  if (first >= count - 1) return {count - 1, count - 1, 0};
  return {first, first + 1, static_cast<int>((place - first) * kOne + 0.5)};
}

void ResizeRow(const uint8_t* row, const Between* columns, int width, uint16_t* out) {
  for (int x = 0; x < width; ++x) {
    const uint8_t* a = row + columns[x].first * kChannels;
    const uint8_t* b = row + columns[x].second * kChannels;
    const int weight = columns[x].weight;
    for (int c = 0; c < kChannels; ++c) {
      out[x * kChannels + c] = static_cast<uint16_t>(a[c] * (kOne - weight) + b[c] * weight);
    }
  }
}

CONVOY_VECTORISED void Mix(const uint16_t* __restrict a, const uint16_t* __restrict b, int weight,
                           int count, uint8_t* __restrict out) {
  const uint32_t second = weight, first = kOne - weight;
  for (int i = 0; i < count; ++i) {
    out[i] = static_cast<uint8_t>((a[i] * first + b[i] * second + (1u << (2 * kBits - 1))) >>
                                  (2 * kBits));
  }
}

// All that is to be freed, whichever way the decoder is left.
struct Work {
  jpeg_decompress_struct info;
  uint8_t* row = nullptr;
  uint16_t* rows[2] = {nullptr, nullptr};
  Between* columns = nullptr;
};

void Free(Work* work) {
  jpeg_destroy_decompress(&work->info);
  free(work->row);
  free(work->rows[0]);
  free(work->rows[1]);
  free(work->columns);
}

}  // namespace

extern "C" struct ConvoyPart {
  int32_t top, left, height, width;
  int32_t shrink;    // 1, 2, 4 or 8: the decoder makes so many times fewer rows and columns
  int32_t mirrored;  // whether left and right change places
  int32_t out_height, out_width;
};

namespace {

enum { kDone = 0, kDamaged = 1, kNotOurs = 2 };

// Leaves by a jump if libjpeg finds damage, so nothing here has a destructor.
int Decode(const uint8_t* data, int64_t size, const ConvoyPart* part, uint8_t* out, Work* work,
           char* message) {
  jpeg_decompress_struct& info = work->info;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, data, static_cast<unsigned long>(size));
  jpeg_read_header(&info, TRUE);
  if (info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK) {
    return kNotOurs;
  }
  info.out_color_space = JCS_RGB;
  info.scale_num = 1;
  info.scale_denom = part->shrink;
  jpeg_start_decompress(&info);

  const int top = part->top / part->shrink, left = part->left / part->shrink;
  const int height = part->height / part->shrink, width = part->width / part->shrink;
  if (top < 0 || left < 0 || height < 1 || width < 1 ||
      top + height > static_cast<int>(info.output_height) ||
      left + width > static_cast<int>(info.output_width)) {
    snprintf(message, JMSG_LENGTH_MAX, "it is smaller than it says: %u x %u", info.output_height,
             info.output_width);
    return kDamaged;
  }
  JDIMENSION begin = left, span = width;
  jpeg_crop_scanline(&info, &begin, &span);
  if (top > 0) jpeg_skip_scanlines(&info, top);

  const int count = part->out_width * kChannels;
  work->row = static_cast<uint8_t*>(malloc(static_cast<size_t>(info.output_width) * kChannels));
  work->columns = static_cast<Between*>(malloc(part->out_width * sizeof(Between)));
  for (auto& row : work->rows) row = static_cast<uint16_t*>(malloc(count * sizeof(uint16_t)));
  if (!work->row || !work->columns || !work->rows[0] || !work->rows[1]) {
    snprintf(message, JMSG_LENGTH_MAX, "there is no memory for its rows");
    return kDamaged;
  }
  for (int x = 0; x < part->out_width; ++x) {
    Between found = Find(part->mirrored ? part->out_width - 1 - x : x, width, part->out_width);
    found.first += left - static_cast<int>(begin);
    found.second += left - static_cast<int>(begin);
    work->columns[x] = found;
  }
  // Two rows of the part are held, as wide as the result: an even one and an odd one.
  int read = 0;
  for (int y = 0; y < part->out_height; ++y) {
    const Between rows = Find(y, height, part->out_height);
    for (const int wanted : {rows.first, rows.second}) {
      while (read <= wanted) {
        jpeg_read_scanlines(&info, &work->row, 1);
        // Of the rows that are passed over, none will be asked for again.
        if (read >= rows.first) {
          const int slot = read & 1;
          ResizeRow(work->row, work->columns, part->out_width, work->rows[slot]);
        }
        ++read;
      }
    }
    Mix(work->rows[rows.first & 1], work->rows[rows.second & 1], rows.weight, count,
        out + static_cast<size_t>(y) * count);
  }
  jpeg_abort_decompress(&info);
  return kDone;
}

}  // namespace

// Returns kDone; kDamaged with a message of at most JMSG_LENGTH_MAX bytes; or kNotOurs for colours
// that libjpeg does not turn into red, green and blue.
extern "C" int convoy_decode_part(const uint8_t* data, int64_t size, const ConvoyPart* part,
                                  uint8_t* out, char* message) {
  Work work;
  Errors errors;
  memset(&work.info, 0, sizeof work.info);
  work.info.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = Fail;
  errors.manager.emit_message = SayNothing;
  errors.message = message;
  volatile int outcome = kDamaged;
  if (setjmp(errors.escape) == 0) outcome = Decode(data, size, part, out, &work, message);
  Free(&work);
  return outcome;
}
