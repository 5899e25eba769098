// Decoding of a part of a JPEG, resized, without decoding more than that needs.
//
// Rows above the part are skipped, rows below it are not read, and only the blocks inside it are
// transformed. Each decoded row is resized into the result at once, so the decoded image is never
// in memory as a whole.

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

// After <cstdio>, which it needs and does not include.
#include <jpeglib.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define CONVOY_VECTORISED __attribute__((target_clones("avx2", "default")))
#else
#define CONVOY_VECTORISED
#endif

namespace {

constexpr int kChannels = 3;
// Weights of pixels are multiples of 1/256.
constexpr int kBits = 8;
constexpr int kOne = 1 << kBits;

struct Errors {
  jpeg_error_mgr manager;
  jmp_buf escape;
  char* message;
};

// libjpeg's own error handler would exit the process.
void Fail(j_common_ptr info) {
  auto* errors = reinterpret_cast<Errors*>(info->err);
  info->err->format_message(info, errors->message);
  longjmp(errors->escape, 1);
}

void SayNothing(j_common_ptr, int) {}

// The two of `count` pixels between which a pixel of the result lies, and its distance from the
// first.
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

// For each pixel of a row of the result: the offset of its two adjacent pixels of the source, and
// their weights. A pixel behind the source's last one has a weight of 0.
struct Columns {
  int32_t* first = nullptr;
  uint32_t* weights = nullptr;  // low half: of the first pixel; high half: of the second
};

void ResizePixels(const uint8_t* row, const Columns& columns, int begin, int end, uint16_t* out) {
  for (int x = begin; x < end; ++x) {
    const uint8_t* pixels = row + columns.first[x];
    const uint32_t first = columns.weights[x] & 0xFFFF, second = columns.weights[x] >> 16;
    for (int c = 0; c < kChannels; ++c) {
      out[x * kChannels + c] =
          static_cast<uint16_t>(pixels[c] * first + pixels[c + kChannels] * second);
    }
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
// Two pixels at a time: the six bytes of each become three pairs, and each pair becomes a sum.
__attribute__((target("avx2"))) void ResizeRowAvx2(const uint8_t* row, const Columns& columns,
                                                   int width, uint16_t* out) {
  const __m256i pairs = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i each = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  int x = 0;
  for (; x + 1 < width; x += 2) {
    const auto* left = reinterpret_cast<const __m128i*>(row + columns.first[x]);
    const auto* right = reinterpret_cast<const __m128i*>(row + columns.first[x + 1]);
    const auto* both = reinterpret_cast<const __m128i*>(columns.weights + x);
    const __m256i weights =
        _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_loadl_epi64(both)), each);
    const __m256i pixels = _mm256_shuffle_epi8(
        _mm256_set_m128i(_mm_loadl_epi64(right), _mm_loadl_epi64(left)), pairs);
    const __m256i sums = _mm256_madd_epi16(pixels, weights);
    const __m256i packed = _mm256_packus_epi32(sums, sums);
    // Each store writes one value too many, which the next store overwrites.
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + x * kChannels),
                     _mm256_castsi256_si128(packed));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + (x + 1) * kChannels),
                     _mm256_extracti128_si256(packed, 1));
  }
  ResizePixels(row, columns, x, width, out);
}
#endif

void ResizeRow(const uint8_t* row, const Columns& columns, int width, uint16_t* out) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return ResizeRowAvx2(row, columns, width, out);
#endif
  ResizePixels(row, columns, 0, width, out);
}

CONVOY_VECTORISED void Mix(const uint16_t* __restrict a, const uint16_t* __restrict b, int weight,
                           int count, uint8_t* __restrict out) {
  const uint32_t second = weight, first = kOne - weight;
  for (int i = 0; i < count; ++i) {
    out[i] = static_cast<uint8_t>((a[i] * first + b[i] * second + (1u << (2 * kBits - 1))) >>
                                  (2 * kBits));
  }
}

// Frees everything, whether the decoder returns or jumps out.
struct Work {
  jpeg_decompress_struct info;
  uint8_t* memory = nullptr;
  uint16_t* rows[2] = {nullptr, nullptr};
  Columns columns;
};

void Free(Work* work) {
  jpeg_destroy_decompress(&work->info);
  free(work->memory);
  free(work->rows[0]);
  free(work->rows[1]);
  free(work->columns.first);
  free(work->columns.weights);
}

}  // namespace

extern "C" struct ConvoyPart {
  int32_t top, left, height, width;
  int32_t shrink;    // 1, 2, 4 or 8: factor by which the decoder reduces rows and columns
  int32_t flip;      // whether left and right are exchanged
  int32_t out_height, out_width;
};

namespace {

enum { kDone = 0, kDamaged = 1, kNotOurs = 2 };

// Jumps out if libjpeg finds damage, so nothing here may have a destructor.
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
  // In 64 bits: the sums of two large numbers would be negative in 32.
  if (top < 0 || left < 0 || height < 1 || width < 1 ||
      int64_t{top} + height > int64_t{info.output_height} ||
      int64_t{left} + width > int64_t{info.output_width}) {
    snprintf(message, JMSG_LENGTH_MAX, "it is smaller than its header says: %u x %u",
             info.output_height,
             info.output_width);
    return kDamaged;
  }
  JDIMENSION begin = left, span = width;
  jpeg_crop_scanline(&info, &begin, &span);
  if (top > 0) jpeg_skip_scanlines(&info, top);

  const int count = part->out_width * kChannels;
  // A few bytes more than needed: two pixels are read at once, as eight bytes.
  const size_t row_size = static_cast<size_t>(info.output_width) * kChannels;
  work->memory = static_cast<uint8_t*>(calloc(row_size + 8, 1));
  // Misaligned on purpose: libjpeg-turbo bypasses the cache for aligned rows, but this row is read
  // next.
  uint8_t* row = work->memory + 1;
  Columns& columns = work->columns;
  columns.first = static_cast<int32_t*>(malloc(part->out_width * sizeof(int32_t)));
  columns.weights = static_cast<uint32_t*>(malloc(part->out_width * sizeof(uint32_t)));
  for (auto& kept : work->rows) {
    kept = static_cast<uint16_t*>(malloc((count + 1) * sizeof(uint16_t)));
  }
  if (!work->memory || !columns.first || !columns.weights || !work->rows[0] || !work->rows[1]) {
    snprintf(message, JMSG_LENGTH_MAX, "there is no memory for its rows");
    return kDamaged;
  }
  for (int x = 0; x < part->out_width; ++x) {
    const Between found =
        Find(part->flip ? part->out_width - 1 - x : x, width, part->out_width);
    columns.first[x] = (found.first + left - static_cast<int>(begin)) * kChannels;
    columns.weights[x] = static_cast<uint32_t>(kOne - found.weight) |
                         static_cast<uint32_t>(found.weight) << 16;
  }
  // Two resized rows of the part are kept: an even one and an odd one.
  int read = 0;
  for (int y = 0; y < part->out_height; ++y) {
    const Between rows = Find(y, height, part->out_height);
    for (const int wanted : {rows.first, rows.second}) {
      while (read <= wanted) {
        jpeg_read_scanlines(&info, &row, 1);
        // Rows that were skipped are not needed again.
        if (read >= rows.first) {
          const int slot = read & 1;
          ResizeRow(row, columns, part->out_width, work->rows[slot]);
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
// that libjpeg does not convert to RGB.
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
